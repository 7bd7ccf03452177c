#include "lab/points.h"

namespace lab {

Shares shares_of(double points, const HasParts& has) {
  Shares shares;
  if (has.hidden) shares.hidden = 0.2 * points;
  if (has.performance) shares.performance = 0.2 * points;
  if (has.bug) shares.bug = 0.1 * points;
  shares.published = points - shares.hidden - shares.performance - shares.bug;
  return shares;
}

}  // namespace lab
