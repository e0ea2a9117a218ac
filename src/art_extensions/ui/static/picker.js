// Charts of any metric of a run. Pins stay for all runs: in the page's address, and in the browser.
"use strict";
{
  const KEPT = "art-pins";
  const form = document.querySelector("[data-picker]");

  class Picker {
    constructor() {
      this.place = document.querySelector("[data-pinned]");
      this.output = form.querySelector("[data-picked]");
      this.names = new Set([...form.querySelectorAll("option")].map((one) => one.value));
      this.all = form.dataset.all ? JSON.parse(form.dataset.all) : null; // a page that is a file has all of them
      this.pins = [];
      const asked = new URLSearchParams(location.search).getAll("pin");
      for (const name of asked.length ? asked : this.read()) this.pin(name);
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.choose();
      });
      form.elements.metric.addEventListener("change", () => this.names.has(form.elements.metric.value) && this.choose());
    }

    read() {
      try {
        const found = JSON.parse(localStorage.getItem(KEPT));
        return Array.isArray(found) ? found.filter((one) => typeof one === "string") : [];
      } catch {
        return []; // the browser keeps nothing
      }
    }

    save() {
      try {
        localStorage.setItem(KEPT, JSON.stringify(this.pins));
      } catch {
        // the address has them
      }
      const asked = new URLSearchParams(location.search);
      asked.delete("pin");
      for (const name of this.pins) asked.append("pin", name);
      history.replaceState(null, "", asked.size ? `?${asked}` : location.pathname);
    }

    choose() {
      const name = form.elements.metric.value.trim();
      if (!name) return;
      if (!this.names.has(name)) {
        this.output.textContent = `This run has no metric ${name}.`;
        return;
      }
      form.elements.metric.value = "";
      this.output.textContent = "";
      this.pin(name);
      this.save();
    }

    async pin(name) {
      if (this.pins.includes(name)) return;
      this.pins.push(name);
      if (!this.names.has(name)) return; // another run's, which keeps its pin
      const figure = this.figure(name);
      this.place.append(figure);
      try {
        const chart = this.all ? this.all[name] : await (await fetch(`${form.dataset.picker}?${new URLSearchParams({ name })}`)).json();
        figure.querySelector(".last").textContent = chart.last;
        const node = figure.querySelector(".chart");
        node.dataset.chart = JSON.stringify(chart);
        node.dispatchEvent(new CustomEvent("art-chart", { bubbles: true }));
      } catch {
        this.output.textContent = "These pages are closed: run art ui again.";
      }
    }

    figure(name) {
      const part = (tag, kind, text) => {
        const node = document.createElement(tag);
        if (kind) node.className = kind;
        if (text) node.textContent = text;
        return node;
      };
      const figure = part("figure"), caption = part("figcaption"), chart = part("div", "chart");
      const unpin = part("button", "", "Unpin");
      unpin.type = "button";
      unpin.setAttribute("aria-label", `Unpin ${name}`);
      unpin.addEventListener("click", () => {
        this.pins = this.pins.filter((one) => one !== name);
        figure.remove();
        this.save();
        form.elements.metric.focus();
      });
      const title = part("span", "metric", name);
      title.title = name;
      caption.append(title, part("span", "last"), unpin);
      chart.setAttribute("role", "img");
      chart.setAttribute("aria-label", `${name} by step`);
      figure.append(caption, chart);
      return figure;
    }
  }

  if (form) new Picker();
}
