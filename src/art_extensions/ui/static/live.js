// The jobs and rollouts of now: asked for every two seconds while a server runs and the page is seen, for half an hour.
"use strict";
{
  const EVERY_MS = 2000, IDLE_MS = 10_000, ANSWER_MS = 10_000, LOOK_MS = 30 * 60_000, FAILURES = 3;
  const node = document.querySelector("[data-now]");

  class Live {
    constructor() {
      this.words = node.querySelector("[data-now-words]");
      this.state = node.querySelector("[data-now-state]");
      this.button = node.querySelector("[data-now-again]");
      this.failures = 0;
      this.button.addEventListener("click", () => this.begin());
      document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.begin()));
      if (!document.hidden) this.begin();
    }

    begin() {
      this.until = performance.now() + LOOK_MS;
      this.failures = 0;
      this.idle = this.state.textContent !== "alive";
      this.button.hidden = true;
      this.rest();
      this.wait();
    }

    wait() {
      this.timer = setTimeout(() => this.look(), this.idle ? IDLE_MS : EVERY_MS);
    }

    rest() {
      clearTimeout(this.timer);
      this.timer = undefined;
    }

    stop(words) {
      this.rest();
      this.words.textContent = words;
      this.button.hidden = false;
    }

    async look() {
      const timer = this.timer;
      try {
        const reply = await fetch(node.dataset.now, { signal: AbortSignal.timeout(ANSWER_MS) });
        if (!reply.ok) throw new Error(String(reply.status));
        const found = await reply.json();
        if (timer !== this.timer) return; // hidden meanwhile
        this.failures = 0;
        this.show(found);
      } catch {
        if (timer !== this.timer) return;
        this.failures += 1;
        if (this.failures >= FAILURES) {
          this.state.textContent = "no answer";
          this.state.className = "badge life-dead";
          return this.stop("These pages are closed, or this browser was locked out. The files stay: art ui shows them.");
        }
      }
      if (performance.now() > this.until) return this.stop("Refreshing stopped after 30 minutes.");
      this.wait();
    }

    show(found) {
      if (this.words.textContent !== found.words) this.words.textContent = found.words;
      this.state.textContent = found.state;
      this.idle = found.state !== "alive";
      this.state.className = `badge life-${found.state}`;
      for (const name of ["jobs", "rollouts", "nodes", "placements"]) this.fill(node.querySelector(`[data-now-${name}]`), found[name]);
    }

    fill(section, rows) {
      const body = section.querySelector("tbody");
      if (section.dataset.optional !== undefined) section.hidden = rows.length === 0;
      section.querySelector(".wide").hidden = rows.length === 0;
      section.querySelector("[data-none]").hidden = rows.length > 0;
      const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const kinds = [...section.querySelectorAll("thead th")].map((head) => head.className);
      body.replaceChildren(...rows.map((row) => this.row(row, kinds)));
      if (focused) [...body.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    }

    row(found, kinds) {
      const row = document.createElement("tr");
      found.cells.forEach((text, at) => {
        const cell = document.createElement(at ? "td" : "th");
        if (at) cell.className = kinds[at];
        else cell.scope = "row";
        if (!at && found.href) {
          const link = document.createElement("a");
          link.href = node.dataset.base + found.href;
          link.textContent = text;
          cell.append(link);
        } else cell.textContent = text;
        row.append(cell);
      });
      return row;
    }
  }

  if (node && document.documentElement.dataset.exported === undefined) new Live();
}
