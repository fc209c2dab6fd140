"use strict";
// Times, and the figures and words of a run that is followed, after theme.js and draw.js. No framework; every text is set as text.
(() => {
  const { root } = isthmus;
  const $ = (id) => document.getElementById(id);
  const figures = new Map();

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // A card is narrower once it has a neighbour.
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.data) isthmus.draw(target, target.data, target.layout);
  });

  function showFigure(spec, index) {
    let figure = figures.get(spec.key);
    if (!figure) {
      const box = element("figure", "card");
      box.dataset.figure = spec.key;
      const caption = element("figcaption");
      figure = { box, title: element("h3"), plot: element("div", "plot"), reading: element("p", "remark") };
      caption.append(figure.title);
      figure.plot.setAttribute("role", "img");
      box.append(caption, figure.plot, figure.reading);
      $("figures").insertBefore(box, $("figures").children[index] ?? null);
      figures.set(spec.key, figure);
      sizes.observe(figure.plot);
    }
    const text = JSON.stringify(spec);
    if (figure.text === text) return;
    figure.text = text;
    figure.title.textContent = spec.title;
    figure.reading.textContent = spec.reading;
    figure.plot.setAttribute("aria-label", `${spec.title}. ${spec.reading}`);
    isthmus.draw(figure.plot, spec.data, { ...spec.layout, height: 300 });
  }

  function badge(target, shown) {
    target.hidden = !shown;
    if (!shown) return;
    target.textContent = shown.word;
    target.className = `badge ${shown.tone}`;
  }

  function clock(seconds) {
    const moment = new Date(seconds * 1000);
    const today = moment.toDateString() === new Date().toDateString();
    const time = moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
    return today ? time : `${moment.toLocaleDateString()} ${time}`;
  }

  function showProgress(progress, running) {
    $("progress").hidden = !progress;
    if (!progress) return;
    const percent = Math.floor(100 * progress.share);
    const bar = document.querySelector(".bar");
    bar.firstElementChild.style.width = `${percent}%`;
    bar.setAttribute("aria-valuenow", String(percent));
    $("progress").classList.toggle("still", !running);
    $("share").textContent = `${percent} %, step ${progress.done} of about ${progress.total}`;
    $("left").textContent = progress.left;
  }

  function showFacts(facts) {
    $("facts").hidden = !facts.length;
    $("facts").replaceChildren(
      ...facts.map((fact) => {
        const value = element("dd");
        value.append(element("strong", "", fact.value), element("small", "", fact.note));
        const box = element("div");
        box.append(element("dt", "", fact.label), value);
        return box;
      }),
    );
  }

  function showLines(lines) {
    if (!lines.length) return;
    $("log").hidden = false;
    const list = $("lines");
    // Who reads further up is not pulled down.
    const follows = list.scrollTop + list.clientHeight >= list.scrollHeight - 30;
    list.replaceChildren(
      ...lines.map(([at, text]) => {
        const line = element("li");
        line.append(element("time", "", clock(at)), element("bdi", "", text));
        return line;
      }),
    );
    if (follows) list.scrollTop = list.scrollHeight;
  }

  function show(snapshot) {
    if ($("sentence").textContent !== snapshot.sentence) $("sentence").textContent = snapshot.sentence;
    badge($("state"), snapshot.state);
    badge($("verdict"), snapshot.verdict);
    $("meaning").textContent = snapshot.meaning;
    $("report").hidden = !snapshot.report;
    $("command").hidden = !snapshot.command;
    $("command").textContent = snapshot.command;
    showProgress(snapshot.progress, snapshot.running);
    showFacts(snapshot.facts);
    showLines(snapshot.lines);
    // Figures that are no longer told stay as they were last seen.
    snapshot.figures.forEach(showFigure);
    document.title = `${snapshot.state.word} · ${snapshot.name} · isthmus`;
    root.dataset.ready = "true";
  }

  function follow(address) {
    const source = new EventSource(address);
    const again = () => setTimeout(() => follow(address), 3000);
    source.addEventListener("open", () => ($("offline").hidden = true));
    source.addEventListener("snapshot", (event) => show(JSON.parse(event.data)));
    source.addEventListener("gone", () => {
      badge($("state"), { word: "gone", tone: "bad" });
      $("meaning").textContent = "Its folder is no longer there. What is below was seen last.";
      source.close();
      again();
    });
    source.addEventListener("error", () => {
      $("offline").hidden = $("state").textContent === "gone";
      // The browser gives up where the answer was an error; the folder may come back.
      if (source.readyState === EventSource.CLOSED) again();
    });
    addEventListener("pagehide", () => source.close());
  }

  function showTimes() {
    for (const time of document.querySelectorAll("time[data-time]")) time.textContent = clock(Number(time.dataset.time));
  }

  // The list of runs: the same page again, its middle exchanged where it differs.
  let listed = "";
  async function refresh() {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const text = answer.ok ? await answer.text() : listed;
      if (text === listed) return;
      listed = text;
      const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      const focus = document.activeElement?.getAttribute("href");
      document.querySelector("main").replaceChildren(...fresh.childNodes);
      showTimes();
      if (focus) [...document.links].find((link) => link.getAttribute("href") === focus)?.focus();
    } catch {
      // The server is gone for now; what was seen last stays.
    }
  }

  isthmus.followTheme();
  const followed = document.querySelector("[data-events]");
  if (followed) {
    follow(followed.dataset.events);
  } else {
    showTimes();
    setInterval(refresh, 3000);
    root.dataset.ready = "true";
  }
})();
