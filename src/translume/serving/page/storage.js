// What is kept in the browser; where it keeps nothing for pages, nothing is kept and all else works.

export function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

// Keep a text, or forget it (null); whether that was done.
export function store(name, text) {
  try {
    if (text === null) localStorage.removeItem(name);
    else localStorage.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}
