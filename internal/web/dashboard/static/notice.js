(() => {
  const wait = document.getElementById("wait");
  if (!wait) return;
  let asked = 0;
  // Every second at first, later every 5 s, and not while the page is hidden.
  const pause = () => (asked < 30 ? 1000 : asked < 90 ? 2000 : 5000);
  const ask = async () => {
    if (document.hidden) {
      document.addEventListener("visibilitychange", ask, { once: true });
      return;
    }
    asked++;
    try {
      const res = await fetch(wait.dataset.wait, { headers: { Accept: "application/json" }, redirect: "error", cache: "no-store" });
      if (res.ok || res.status === 401 || res.status === 403) {
        location.replace(wait.dataset.again);
        return;
      }
    } catch {}
    setTimeout(ask, pause());
  };
  setTimeout(ask, 1000);
})();
