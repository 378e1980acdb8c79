# Prints what zsh completes, one a line: zsh_complete.zsh SCRIPT LINE. zsh completes on a terminal only, so it gets one.
zmodload zsh/zpty
script=$1 line=$2
zpty shell zsh -f -i
tell() { zpty -w shell "$1" }
tell 'unset zle_bracketed_paste; PROMPT= RPROMPT=; autoload -Uz compinit && compinit -D -u'
tell "source ${(q)script}"
# Each candidate goes through compadd. This one writes them down and offers none.
tell 'compadd() { [[ ${@[(I)-[OAD]]} -gt 0 ]] && { builtin compadd "$@"; return }; local -a found; builtin compadd -A found "$@"; (( $#found )) && print -rl -- FOUND:${^found} >>$FOUND; return 1 }'
tell 'zle -C offer complete-word _main_complete; done-with() { print FINISHED >>$FOUND }; zle -N done-with; bindkey "^X1" offer; bindkey "^X2" done-with'
FOUND=$(mktemp)
tell "FOUND=${(q)FOUND}"
zpty -w -n shell "$line"$'\x181\x182'
for i in {1..300}; do
  [[ "$(<$FOUND)" == *FINISHED* ]] && break
  zpty -r -t shell output || sleep 0.02
done
grep '^FOUND:' $FOUND | sed 's/^FOUND://'
rm -f $FOUND
zpty -d shell
