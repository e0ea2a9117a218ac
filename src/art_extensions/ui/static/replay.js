// A step is replayed: started by a button, asked for every second while it runs and the page is seen.
"use strict";
{
  const EVERY_MS = 1000, ANSWER_MS = 10_000, FAILURES = 5;
  const CLOSED = "These pages are closed, or this browser was locked out: run art ui again.";
  const node = document.querySelector("[data-replay]");

  class Replay {
    constructor() {
      this.words = node.querySelector("[data-replay-words]");
      this.text = node.querySelector("[data-replay-text]");
      this.button = node.querySelector("[data-replay-start]");
      this.failures = 0;
      this.button.addEventListener("click", () => this.start());
      document.addEventListener("visibilitychange", () => !document.hidden && this.running && this.look());
      this.running = node.dataset.state === "running";
      if (this.running) this.wait();
    }

    async start() {
      if (this.button.disabled) return;
      this.button.disabled = true;
      this.failures = 0;
      await this.ask({ method: "POST", headers: { "x-art-key": node.dataset.key } });
    }

    async look() {
      clearTimeout(this.timer);
      await this.ask({});
    }

    wait() {
      clearTimeout(this.timer);
      if (!document.hidden) this.timer = setTimeout(() => this.look(), EVERY_MS);
    }

    async ask(options) {
      try {
        const reply = await fetch(node.dataset.replay, { ...options, signal: AbortSignal.timeout(ANSWER_MS) });
        if (!(reply.headers.get("content-type") || "").startsWith("application/json")) throw new Error(String(reply.status));
        this.failures = 0;
        this.show(await reply.json());
      } catch {
        this.failures += 1;
        if (this.failures >= FAILURES || !this.running) return this.end(CLOSED);
      }
      if (this.running) this.wait();
    }

    end(words) {
      this.running = false;
      this.button.disabled = false;
      this.words.textContent = words;
    }

    show(found) {
      this.running = found.state === "running";
      this.button.disabled = this.running;
      this.words.textContent = found.words;
      this.text.textContent = found.text;
      this.text.hidden = !found.text;
    }
  }

  if (node && document.documentElement.dataset.exported === undefined) new Replay();
}
