// Task 2.6.marks: random texts, beside a list that has a mark for each byte.
#include <gtest/gtest.h>

#include <utility>

#include "step2_model/chat/jinja/text.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using jinja::Origin;
using jinja::Text;

struct Model {
  std::string bytes;
  std::vector<Origin> origins;     // of each byte
  std::vector<size_t> borders{0};  // of characters, the end among them

  void append(const std::string& character, Origin origin) {
    bytes += character;
    origins.insert(origins.end(), character.size(), origin);
    borders.push_back(bytes.size());
  }
  Model slice(size_t first, size_t last) const {  // characters
    Model part;
    for (size_t i = first; i < last; ++i)
      part.append(bytes.substr(borders[i], borders[i + 1] - borders[i]), origins[borders[i]]);
    return part;
  }
};

void expect_same(const Text& text, const Model& model) {
  ASSERT_EQ(text.bytes(), model.bytes);
  ASSERT_EQ(text.size(), model.bytes.size());
  ASSERT_EQ(text.empty(), model.bytes.empty());
  bool all_trusted = true;
  for (size_t at = 0; at < model.bytes.size(); ++at) {
    ASSERT_EQ(text.origin_at(at), model.origins[at]) << "byte " << at << " of " << model.bytes;
    all_trusted &= model.origins[at] == Origin::trusted;
  }
  ASSERT_EQ(text.least_origin() == Origin::trusted, all_trusted) << model.bytes;
  std::vector<std::pair<std::string, Origin>> seen, expected;
  text.for_each_stretch([&](std::string_view bytes, Origin origin) { seen.emplace_back(bytes, origin); });
  for (size_t at = 0; at < model.bytes.size(); ++at) {
    if (expected.empty() || expected.back().second != model.origins[at])
      expected.emplace_back("", model.origins[at]);
    expected.back().first += model.bytes[at];
  }
  ASSERT_EQ(seen, expected) << "stretches of " << model.bytes;
  const size_t count = model.borders.size() - 1;
  ASSERT_EQ(jinja::count_code_points(model.bytes), count) << model.bytes;
  for (size_t i = 0; i < count + 3; ++i)
    ASSERT_EQ(jinja::code_point_offset(model.bytes, i), model.borders[std::min(i, count)])
        << "character " << i << " of " << model.bytes;
}

TEST(Hidden2_6_Marks, EveryByteKeepsItsOrigin) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<std::string> characters = {
      "a", "<|", "\n", "é", "ß", "—", "漢", "😀", std::string(1, '\0')};
  for (int day = 0; day < 300; ++day) {
    Text text;
    Model model;
    for (int event = 0; event < 14; ++event) {
      const Origin origin = random.integer(0, 1) == 0 ? Origin::trusted : Origin::outside;
      const size_t count = model.borders.size() - 1;
      const auto last = static_cast<size_t>(random.integer(0, static_cast<int64_t>(count)));
      const auto first = static_cast<size_t>(random.integer(0, static_cast<int64_t>(last)));
      switch (random.integer(0, 4)) {
        case 0:
        case 1: {
          std::string all;
          for (int64_t left = random.integer(0, 4); left > 0; --left) {
            const std::string& one = random.one_of(characters);
            all += one;
            for (size_t i = 0; i < (one == "<|" ? 2u : 1u); ++i)
              model.append(one == "<|" ? one.substr(i, 1) : one, origin);
          }
          text.append(all, origin);
          break;
        }
        case 2: {  // a part of itself, or all
          const Model part = model.slice(first, last);
          text.append(text.slice(model.borders[first], model.borders[last]));
          for (size_t i = 0; i + 1 < part.borders.size(); ++i)
            model.append(part.bytes.substr(part.borders[i], part.borders[i + 1] - part.borders[i]),
                         part.origins[part.borders[i]]);
          break;
        }
        case 3:
          if (count > 60) break;
          text.append(text);
          for (size_t i = 0; i < count; ++i)
            model.append(model.bytes.substr(model.borders[i], model.borders[i + 1] - model.borders[i]),
                         model.origins[model.borders[i]]);
          break;
        default:
          text = text.slice(model.borders[first], model.borders[last]);
          model = model.slice(first, last);
      }
      expect_same(text, model);
      expect_same(text.slice(2, 1), Model());
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace ladder
