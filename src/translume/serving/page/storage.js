// The browser's storage. If it is disabled, nothing is stored and everything else works.

export function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

// Store a text, or delete it (null); return whether it succeeded.
export function store(name, text) {
  try {
    if (text === null) localStorage.removeItem(name);
    else localStorage.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}
