"use strict";
// The strip of a page that is served: what is known by now, and when there is a newer page.
(() => {
  const strip = document.getElementById("live");
  const token = new URLSearchParams(location.search).get("token");
  const shown = Number(strip.dataset.page);
  const part = (name) => strip.querySelector(`[data-part="${name}"]`);
  const keep = "memprof-scroll";
  let used = Date.now();
  for (const event of ["pointerdown", "pointermove", "keydown", "wheel"]) {
    addEventListener(event, () => { used = Date.now(); }, { passive: true });
  }

  // A figure is drawn late: the place on the page is found again once it is.
  const at = Number(sessionStorage.getItem(keep) || 0);
  sessionStorage.removeItem(keep);
  if (at) {
    const back = setInterval(() => {
      if (document.documentElement.dataset.drawn) { clearInterval(back); scrollTo(0, at); }
    }, 50);
  }
  const renew = () => { sessionStorage.setItem(keep, String(scrollY)); location.reload(); };
  part("renew").addEventListener("click", renew);

  const source = new EventSource(`events${token ? `?token=${encodeURIComponent(token)}` : ""}`);
  source.onopen = () => { strip.dataset.state = "on"; };
  source.onerror = () => {
    strip.dataset.state = "off";
    part("state").textContent = "the server does not answer";
  };
  source.onmessage = (event) => {
    const now = JSON.parse(event.data);
    part("state").textContent = now.state;
    part("step").textContent = now.step;
    part("memory").textContent = now.memory;
    part("full").textContent = now.full;
    part("finding").textContent = now.finding;
    const newer = now.page > shown;
    part("renew").hidden = !newer;
    const idle = Date.now() - used > 3000 || !shown;
    if (newer && part("auto").checked && idle) { source.close(); renew(); }
  };
})();
