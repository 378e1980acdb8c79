// Sets the chosen colours before anything is drawn.
'use strict';
(() => {
  let chosen = 'auto';
  try {
    chosen = localStorage.getItem('prefixd-theme') || 'auto';
  } catch {
    // No storage: the system's colours.
  }
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
})();
