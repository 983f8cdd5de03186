// What pages do without this they do with it too: it only saves a keystroke or a reload.
'use strict';
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone && !document.cookie.includes('tz=' + encodeURIComponent(zone))) {
    document.cookie = 'tz=' + encodeURIComponent(zone) + '; path=/; max-age=31536000; samesite=lax';
  }
  document.addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || /^(input|textarea|select)$/i.test(e.target.tagName)) return;
    const box = [...document.querySelectorAll('[data-find]')].find((el) => el.offsetParent); // true in a menu that is closed, too
    if (box) {
      const menu = box.closest('details');
      if (menu) menu.open = true;
      e.preventDefault();
      box.focus();
    }
  });
  // What somebody is filling in is not taken away under their hands.
  const touched = (el) => [...el.querySelectorAll('input, textarea, select')].some((f) =>
    f === document.activeElement || (f.type === 'radio' || f.type === 'checkbox' ? f.checked !== f.defaultChecked : f.type !== 'hidden' && 'defaultValue' in f && f.value !== f.defaultValue));
  document.addEventListener('htmx:beforeSwap', (e) => {
    if (e.detail.target && e.detail.target.hasAttribute('data-live') && touched(e.detail.target)) e.detail.shouldSwap = false;
  });
  // What was done is read out after a save that did not load the page anew.
  document.addEventListener('htmx:afterSettle', (e) => {
    if (e.detail.target && e.detail.target.id === 'main') {
      const told = document.querySelector('#main [data-told]');
      if (told) told.focus({ preventScroll: true });
    }
  });
})();
