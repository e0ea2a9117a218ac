// The keys of every page: rows of tables, neighbours, one level up, the help; and news of a run that lives.
"use strict";
{
  const POLL_MS = 5000;

  const isField = (node) => node.closest("input, select, textarea, dialog") !== null;

  const rowLinks = (table) => [...table.querySelectorAll("tr:not([hidden]) > th a, tbody tr:not([hidden]) > td:first-child a")];

  const moveInTable = (event) => {
    const table = event.target.closest("[data-keys]") || document.querySelector("[data-keys]");
    if (!table) return false;
    const links = rowLinks(table);
    const at = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    const next = { ArrowDown: at + 1, ArrowUp: at < 0 ? 0 : at - 1, Home: 0, End: links.length - 1 }[event.key];
    const link = links[Math.max(0, Math.min(links.length - 1, next))];
    if (!link) return false;
    link.focus();
    return true;
  };

  const follow = (selector) => {
    const link = document.querySelector(selector);
    if (link) link.click();
    return link !== null;
  };

  const help = document.getElementById("help");
  const showHelp = () => (help.open ? help.close() : help.showModal());
  document.querySelector("[data-help]").addEventListener("click", showHelp);

  const ways = {
    ArrowDown: moveInTable,
    ArrowUp: moveInTable,
    Home: moveInTable,
    End: moveInTable,
    ArrowLeft: () => follow("a[rel=prev]"),
    ArrowRight: () => follow("a[rel=next]"),
    u: () => follow(".crumbs li:nth-last-child(2) a"),
    "/": () => {
      const field = document.querySelector("input[type=search]");
      if (field) field.focus();
      return field !== null;
    },
    "?": () => {
      showHelp();
      return true;
    },
  };

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isField(event.target) && !(event.key === "?" && help.open)) return;
    const own = event.target.closest("[role=region][tabindex]");
    if (own && own.scrollWidth > own.clientWidth && event.key.startsWith("Arrow")) return; // it scrolls
    const way = ways[event.key];
    if (way && way(event)) event.preventDefault();
  });

  const live = document.querySelector("[data-live]");
  if (live && document.documentElement.dataset.exported === undefined) {
    const timer = setInterval(async () => {
      if (document.hidden) return;
      try {
        const found = await (await fetch(live.dataset.live)).json();
        if (found.version === live.dataset.changed) return;
        live.querySelector(".live").hidden = false;
        clearInterval(timer);
      } catch {
        clearInterval(timer); // the pages were closed
      }
    }, POLL_MS);
  }
}
