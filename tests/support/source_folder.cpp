#include "tests/support/source_folder.h"

namespace ladder::testing {

std::filesystem::path source_folder() {
  return LADDER_SOURCE_DIR;
}

}  // namespace ladder::testing
