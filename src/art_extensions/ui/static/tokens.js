// Tokens: the colour is one attribute of their container; one token at a time is told in full.
"use strict";
{
  const LEGENDS = {
    logprob: [["l0", "p ≥ 0.95"], ["l1", "≥ 0.6"], ["l2", "≥ 0.22"], ["l3", "≥ 0.05"], ["l4", "below"]],
    entropy: [["e0", "< 0.05 nats"], ["e1", "< 0.5"], ["e2", "< 1.2"], ["e3", "< 2"], ["e4", "more"]],
    ratio: [["r0", "< 0.8"], ["r1", "< 0.95"], ["r2", "about 1"], ["r3", "> 1.05"], ["r4", "> 1.25"]],
    advantage: [["a0", "≤ −1"], ["a1", "negative"], ["a2", "zero"], ["a3", "positive"], ["a4", "≥ 1"]],
    mask: [["m-trained", "trained"], ["m-clipped", "clipped"], ["m-masked", "masked"]],
  };

  const view = document.querySelector("[data-tokens]");
  if (view) {
    const spans = [...view.querySelectorAll(".line span")];
    const inspector = document.querySelector("[data-inspector]");
    const legend = document.querySelector("[data-legend]");
    let active = null;

    const numbersOf = (span) => {
      const sample = span.closest(".sample");
      sample.numbers ??= JSON.parse(sample.dataset.numbers);
      return sample.numbers[Array.prototype.indexOf.call(span.parentNode.children, span)] || {};
    };

    const tell = (span) => {
      const text = document.createElement("b");
      text.textContent = JSON.stringify(span.textContent);
      const found = numbersOf(span);
      const parts = Object.entries(found).map(([name, value]) => `${name} ${value}`);
      if (typeof found.logprob === "number") parts.push(`p ${Number(Math.exp(found.logprob).toPrecision(3))}`);
      inspector.replaceChildren(text, document.createTextNode(`  ${parts.join(" · ")}`));
    };

    const choose = (span) => {
      active?.classList.remove("active");
      active = span;
      span.classList.add("active");
      tell(span);
    };

    const colour = (signal) => {
      view.dataset.signal = signal;
      const box = document.createElement("span");
      box.className = "line";
      for (const [kind, words] of LEGENDS[signal]) {
        const one = document.createElement("span");
        one.className = kind;
        one.textContent = words;
        box.append(one);
      }
      legend.dataset.signal = signal;
      legend.replaceChildren(box);
    };

    view.addEventListener("pointerover", (event) => {
      if (event.target.matches(".line span")) tell(event.target);
    });
    view.addEventListener("click", (event) => {
      if (event.target.matches(".line span")) choose(event.target);
    });
    view.addEventListener("keydown", (event) => {
      if (event.target !== view) return;
      const at = active ? spans.indexOf(active) : -1;
      const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: spans.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const span = spans[Math.max(0, Math.min(spans.length - 1, next))];
      choose(span);
      span.scrollIntoView({ block: "nearest", behavior: "instant" });
    });
    document.querySelector("[data-signals]").addEventListener("change", (event) => colour(event.target.value));
    colour("logprob");
  }
}
