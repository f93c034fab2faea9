// How the search of the site ranks pages: decisions and design notes come last, since few readers look for them.
var Scorer = {
  score: ([page, , , , score]) => (/^docs\/(decisions|design)\//.test(page) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
