// Draw each chart from what stands beside it. Errors are shown where the picture would be.
const rowsOf = (columns) => {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, row) =>
    Object.fromEntries(names.map((name) => [name, columns[name][row]])),
  );
};

for (const holder of document.querySelectorAll(".chart")) {
  const { spec, data } = JSON.parse(holder.nextElementSibling.textContent);
  spec.datasets = Object.fromEntries(
    Object.entries(data).map(([name, columns]) => [name, rowsOf(columns)]),
  );
  const options = {
    actions: false,
    // Expressions are interpreted: the page's policy forbids making code from text.
    ast: true,
    renderer: "svg",
    tooltip: { disableDefaultStyle: true },
  };
  vegaEmbed(holder, spec, options).then(
    () => holder.setAttribute("data-drawn", "yes"),
    (error) => {
      holder.setAttribute("data-drawn", "no");
      holder.textContent = `This chart could not be drawn: ${error}`;
    },
  );
}
