"use strict";
// Without this script the tables are plain; with it a press on a head sorts by that column.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...body.rows];
      const numbers = rows.every((row) => value(row) !== "" && !Number.isNaN(Number(value(row))));
      const order = numbers
        ? (a, b) => Number(value(a)) - Number(value(b))
        : (a, b) => value(a).localeCompare(value(b), undefined, { numeric: true });
      rows.sort((a, b) => (up ? order(a, b) : order(b, a)));
      body.append(...rows);
    });
  });
}
