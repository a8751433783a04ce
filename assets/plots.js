// Live plots: a bare figure, then points to append or to replace. Drawn by Plotly.react, so zoom and pan survive.
"use strict";
window.Cactus = window.Cactus || {};

Cactus.plot = (element, props, watch) => {
  const apart = 160; // milliseconds between two drawings of one plot
  let figure = null, revision = 0, run = 0, waiting = false, last = 0;

  const color = (name) => getComputedStyle(element).getPropertyValue(name).trim();

  const themed = () => {
    const text = color("--plot-text"), grid = color("--plot-grid"), card = color("--plot-card");
    const axis = (own) => ({ ...own, gridcolor: grid, linecolor: grid, tickcolor: grid, showline: true, fixedrange: false });
    const layout = figure.layout;
    return {
      ...layout,
      // On a phone the legend takes two rows: the title needs to stand above both.
      margin: element.clientWidth < 400 ? { ...layout.margin, t: 68 } : layout.margin,
      font: { ...layout.font, color: text, family: getComputedStyle(element).fontFamily },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      hoverlabel: { bgcolor: card, bordercolor: grid, font: { color: text } },
      autosize: true,
      uirevision: run,
      datarevision: ++revision,
    };
  };

  const draw = () => {
    waiting = false;
    if (!figure || !element.isConnected) return;
    if (!window.Plotly) return void setTimeout(schedule, 100);
    last = performance.now();
    Plotly.react(element.firstElementChild, figure.data, themed(), {
      responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false,
    });
  };

  const schedule = () => {
    if (waiting) return;
    waiting = true;
    const wait = Math.max(0, last + apart - performance.now());
    setTimeout(() => (document.hidden ? draw() : requestAnimationFrame(draw)), wait);
  };

  const read = (record) => {
    if (!record) return;
    if (record.figure) {
      figure = record.figure;
      run += 1;
    }
    for (const [index, added] of Object.entries(record.extend || {})) {
      for (const [name, values] of Object.entries(added)) figure.data[index][name].push(...values);
    }
    for (const [index, whole] of Object.entries(record.replace || {})) Object.assign(figure.data[index], whole);
    schedule();
  };

  Cactus.follow(props, watch, read);
  new MutationObserver(schedule).observe(document.body, { attributes: true, attributeFilter: ["class"] });
};
