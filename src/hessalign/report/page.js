"use strict";
// Tables that can be sorted: a click on, or the enter key in, a column's title sorts by it; again, the other way.
const number = (text) => {
  const found = /^[+-]?[\d,]*\.?\d+(e[+-]?\d+)?(?=$|[\s%])/i.exec(text);
  return found ? parseFloat(found[0].replace(/,/g, "")) : NaN;
};
const missing = (text) => text === "" || text === "–";
const tables = [...document.querySelectorAll("table.sortable")];
const titles = (table) => [...table.tHead.rows[table.tHead.rows.length - 1].cells];
const sort = (table, column, order) => {
  const text = (row) => row.cells[column].textContent.trim();
  const rows = [...table.tBodies[0].rows];
  const numeric = rows.every((row) => missing(text(row)) || !isNaN(number(text(row))));
  order = order || (numeric ? "descending" : "ascending");
  const sign = order === "ascending" ? 1 : -1;
  const compare = (a, b) => numeric ? number(a) - number(b) : a.localeCompare(b, "en", { numeric: true });
  rows.sort((one, other) => {
    const [a, b] = [text(one), text(other)];
    return missing(a) || missing(b) ? missing(a) - missing(b) : sign * compare(a, b);
  });
  table.tBodies[0].append(...rows);
  titles(table).forEach((each) => each.removeAttribute("aria-sort"));
  titles(table)[column].setAttribute("aria-sort", order);
};
for (const table of tables) {
  titles(table).forEach((title, column) => {
    const button = document.createElement("button");
    button.type = "button";
    if (title.querySelector("a")) button.ariaLabel = "sort by " + title.textContent.trim();
    else button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const opposite = { ascending: "descending", descending: "ascending" };
      sort(table, column, opposite[title.getAttribute("aria-sort")]);
    });
  });
}
// A page that is loaded again looks as it was left.
if (document.querySelector("meta[http-equiv=refresh]")) {
  const folds = [...document.querySelectorAll("details")];
  const key = "hessalign " + location.pathname;
  const sorted = (table) => titles(table).findIndex((each) => each.hasAttribute("aria-sort"));
  try {
    const left = JSON.parse(sessionStorage.getItem(key)) || {};
    folds.forEach((each) => { each.open = (left.folds || {})[each.id] ?? each.open; });
    for (const table of tables) {
      const [column, order] = (left.sorts || {})[table.id] || [-1];
      if (column >= 0 && column < titles(table).length) sort(table, column, order);
    }
    if (left.scroll) scrollTo(0, left.scroll);
    addEventListener("pagehide", () => {
      const orders = tables.filter((each) => sorted(each) >= 0).map((each) =>
        [each.id, [sorted(each), titles(each)[sorted(each)].getAttribute("aria-sort")]]);
      sessionStorage.setItem(key, JSON.stringify({
        folds: Object.fromEntries(folds.map((each) => [each.id, each.open])),
        sorts: Object.fromEntries(orders), scroll: scrollY,
      }));
    });
  } catch { /* no storage: the page begins anew */ }
}
