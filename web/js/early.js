// early.js: runs before anything is drawn, so that a lock that is open has its room at once.

document.documentElement.toggleAttribute("data-detail", location.hash.startsWith("#/locks/") && location.hash !== "#/locks/");
