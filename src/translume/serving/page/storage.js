// The browser's storage. If it is disabled, nothing is stored and everything else works.
// where: all tabs share localStorage; sessionStorage belongs to one tab and survives its reload.

export function stored(name, where = "localStorage") {
  try {
    return window[where].getItem(name);
  } catch {
    return null;
  }
}

// Store a text, or delete it (null); return whether it succeeded.
export function store(name, text, where = "localStorage") {
  try {
    if (text === null) window[where].removeItem(name);
    else window[where].setItem(name, text);
    return true;
  } catch {
    return false;
  }
}
