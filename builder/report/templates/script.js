"use strict";
(() => {
  const table = document.getElementById("overview");
  const rows = [...table.tBodies[0].rows];
  const search = document.getElementById("search");
  const wanted = document.getElementById("status");
  const filter = () => {
    const text = search.value.toLowerCase();
    for (const row of rows) {
      const fits = row.dataset.name.toLowerCase().includes(text)
        && (!wanted.value || row.dataset.status === wanted.value);
      row.hidden = !fits;
      document.getElementById(row.dataset.details).hidden = !fits;
    }
  };
  search.addEventListener("input", filter);
  wanted.addEventListener("change", filter);
  document.getElementById("tools").hidden = false;

  const key = (cell) => {
    const data = cell.querySelector("data");
    return data ? Number(data.value) : cell.textContent.trim();
  };
  const order = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      rows.sort((a, b) => sign * order(key(a.cells[column]), key(b.cells[column])));
      table.tBodies[0].append(...rows);
    });
  });

  const show = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.scrollIntoView();
    }
  };
  window.addEventListener("hashchange", show);
  show();

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
})();
