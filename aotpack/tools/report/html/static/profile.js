// Flame graphs of a profile: time and memory by part of the step, module, source line and kernel.
"use strict";
(() => {
  const all = aotpack.data("profile");
  for (const host of document.querySelectorAll("[data-profile]")) {
    const measure = host.dataset.profile;
    const show = measure === "time" ? aotpack.time : (bytes) => aotpack.size(Math.round(bytes));
    icicle.draw(host, all[measure], show, host.dataset.root);
  }
})();
