// Before anything is painted: the theme that was chosen last time, or else the system's.
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const wanted = () => {
  let chosen = null;
  try { chosen = localStorage.getItem("tightrope-theme"); } catch (error) { /* a page from disk may have no storage */ }
  return chosen || (prefersDark.matches ? "dark" : "light");
};
document.documentElement.dataset.theme = wanted();
