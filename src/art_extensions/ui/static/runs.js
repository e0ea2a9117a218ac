// The list of runs: search, tags, seeds of one experiment on one row. What was asked stays in the address.
"use strict";
{
  const form = document.querySelector("[data-runs]");

  const start = () => {
    const table = document.querySelector("table[data-keys]");
    const bodies = [...table.tBodies];
    const button = document.querySelector(".actions button");
    const boxes = [...table.querySelectorAll("[name=run]")];
    const opened = new Set();

    const show = () => {
      const asked = Object.fromEntries(new FormData(form));
      const words = asked.text.toLowerCase().split(/\s+/).filter(Boolean);
      const fits = (row) =>
        words.every((word) => row.dataset.words.includes(word)) && (!asked.tag || JSON.parse(row.dataset.tags).includes(asked.tag));
      let count = 0;
      for (const body of bodies) {
        const all = body.querySelector("[data-all]");
        const found = [...body.querySelectorAll("[data-words]")].map((row) => [row, fits(row)]);
        const some = found.some(([, fit]) => fit);
        const folded = all && asked.seeds !== "apart" && !opened.has(body);
        for (const [row, fit] of found) {
          row.hidden = !fit || folded;
          count += fit;
        }
        if (!all) continue;
        all.hidden = !some || asked.seeds === "apart";
        all.querySelector("[data-unfold]").setAttribute("aria-expanded", String(!folded));
      }
      form.querySelector("[data-count]").textContent = `${count.toLocaleString("en")} run${count === 1 ? "" : "s"}`;
      document.querySelector("[data-none]").hidden = count > 0;
    };

    const choose = () => {
      if (button) button.disabled = !boxes.some((box) => box.checked);
    };

    const keep = () => {
      const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
      history.replaceState(null, "", asked.size ? `?${asked}` : location.pathname);
    };

    for (const [name, value] of new URLSearchParams(location.search)) if (form.elements[name]) form.elements[name].value = value;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      show();
      keep();
    });
    table.addEventListener("click", (event) => {
      const body = event.target.closest("[data-experiment]");
      if (!event.target.closest("[data-unfold]")) return;
      if (!opened.delete(body)) opened.add(body);
      show();
    });
    table.addEventListener("change", (event) => {
      if (event.target.closest("[data-all]"))
        for (const box of event.target.closest("tbody").querySelectorAll("[name=run]")) box.checked = event.target.checked;
      choose();
    });
    show();
    choose();
  };

  if (form) start();
}
