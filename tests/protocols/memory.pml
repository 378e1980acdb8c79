// The memory that the models share: one daemon's stores on their way to memory, on a machine and by
// a compiler that may take them in another order. It is at least as weak as arm64 under the rules
// of C++.
//
//   - A store waits. Any waiting store may reach memory next, unless an earlier one of the same
//     word waits, or it is a release store and anything earlier waits. So a later store may pass an
//     earlier release store.
//   - At a barrier nothing waits. A system call is one, and so is RetireRecord's exchange, past
//     which the compiler moves no store in either direction.
//   - A killed daemon's waiting stores are lost. Each of them might have reached memory just before,
//     so what the next daemon finds is every set of stores that the order allows. Hardware loses
//     none that was made before the kill; what is lost here is what a compiler put behind others.
//   - The next daemon reads after the kernel gave it the dead daemon's lock: no store is under way.
//
// A model says how many WORDS the daemon stores to, and includes this file.

#define MOST_WAITING 8

byte memory[WORDS];
byte waiting_word[MOST_WAITING];
byte waiting_value[MOST_WAITING];
bool waiting_release[MOST_WAITING];
byte count = 0;   // of waiting stores
byte running = 0; // the process that is the daemon; 0: none, the last one was killed
byte killed = 0;  // how many were

#define BARRIER (count == 0)

inline Store(w, v, is_release) {
  atomic {
    count < MOST_WAITING -> d_step {
      waiting_word[count] = w;
      waiting_value[count] = v;
      waiting_release[count] = is_release;
      count++
    }
  }
}

inline Exchange(w, v) {
  atomic { BARRIER -> memory[w] = v }
}

// Takes the waiting store `from` out; what is behind it moves up.
inline Remove(from) {
  do
  :: from + 1 < count ->
    waiting_word[from] = waiting_word[from + 1];
    waiting_value[from] = waiting_value[from + 1];
    waiting_release[from] = waiting_release[from + 1];
    from++
  :: else -> break
  od;
  count--;
  waiting_word[count] = 0;
  waiting_value[count] = 0;
  waiting_release[count] = false
}

#define SAME(i, at) (i < at && waiting_word[i] == waiting_word[at])
#define PASSES(at)                                                                          \
  (count > at && (at == 0 || !waiting_release[at]) && !SAME(0, at) && !SAME(1, at) &&       \
   !SAME(2, at) && !SAME(3, at) && !SAME(4, at) && !SAME(5, at) && !SAME(6, at))
#define ARRIVE(at)                                                                          \
  atomic {                                                                                  \
    PASSES(at) -> d_step {                                                                  \
      memory[waiting_word[at]] = waiting_value[at];                                         \
      from = at;                                                                            \
      Remove(from);                                                                         \
      from = 0                                                                              \
    }                                                                                       \
  }

// Takes stores to memory whenever it likes.
active proctype Memory() {
  byte from = 0;
  do
  :: ARRIVE(0)
  :: ARRIVE(1)
  :: ARRIVE(2)
  :: ARRIVE(3)
  :: ARRIVE(4)
  :: ARRIVE(5)
  :: ARRIVE(6)
  :: ARRIVE(7)
  od
}

// Ends the daemon that runs.
inline Kill() {
  d_step {
    running = 0;
    killed++;
    do
    :: count > 0 ->
      count--;
      waiting_word[count] = 0;
      waiting_value[count] = 0;
      waiting_release[count] = false
    :: else -> break
    od
  }
}
