// Work on the newest input while a user types: often enough to follow, and never two at a time.

export class Latest {
  #run = null;
  #timer = 0;
  #begun = -Infinity;
  #again = false;

  // work(signal): starts on the newest input.  gap: milliseconds between starts.  patience: milliseconds after which
  // work on an older input is cancelled.
  constructor(work, { gap, patience }) {
    this.work = work;
    Object.assign(this, { gap, patience });
  }

  // Start at once; cancel what is running.
  now() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#run?.abort();
    const run = new AbortController();
    Object.assign(run, { begun: performance.now() });
    this.#run = run;
    this.#begun = run.begun;
    this.#again = false;
    this.work(run.signal).finally(() => {
      if (this.#run !== run) return;
      this.#run = null;
      if (this.#again) this.soon();
    });
  }

  // Start soon: after the gap, once what is running has ended or lost patience.
  soon() {
    this.#again = true;
    if (this.#timer) return;
    const passed = performance.now() - this.#begun;
    const wait = this.#run ? this.patience - passed : this.gap - passed;
    if (wait <= 0) this.now();
    else this.#timer = setTimeout(() => {
      this.#timer = 0;
      if (this.#again) this.soon();
    }, Math.min(wait, this.gap));
  }
}
