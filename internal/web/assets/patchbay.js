// What pages do without this they do with it too: it only saves a keystroke or a reload.
'use strict';
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && !document.cookie.includes('tz=' + encodeURIComponent(zone))) {
    document.cookie = 'tz=' + encodeURIComponent(zone) + '; path=/; max-age=31536000; samesite=lax';
  }
  document.addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || /^(input|textarea|select)$/i.test(e.target.tagName)) return;
    const box = [...document.querySelectorAll('[data-find]')].find((el) => el.offsetParent);
    if (box) {
      e.preventDefault();
      box.focus();
    }
  });
  const live = document.querySelector('[data-live]');
  if (live && window.EventSource) {
    const source = new EventSource(live.dataset.live);
    let timer;
    const reload = () => {
      clearTimeout(timer);
      timer = setTimeout(async () => {
        if (document.activeElement && live.contains(document.activeElement) && /^(input|textarea|select)$/i.test(document.activeElement.tagName)) return;
        const answer = await fetch(location.href, { headers: { Accept: 'text/html' } });
        if (!answer.ok) return;
        const next = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('[data-live]');
        if (next) live.replaceChildren(...next.childNodes);
        if (!next || next.dataset.over) source.close();
      }, 150);
    };
    source.onmessage = reload;
    for (const kind of ['run_started', 'turn_started', 'text', 'tool_call', 'tool_result', 'approval_requested', 'approval_decided', 'call_unknown', 'call_resolved', 'run_waiting', 'run_resumed', 'run_ended']) source.addEventListener(kind, reload);
  }
})();
