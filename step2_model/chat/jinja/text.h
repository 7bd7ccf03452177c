#pragma once
// A text that remembers where its characters come from: from the template, or from outside (a message, a tool's
// definition, a document). What comes from outside can be cut, joined and replaced by a template as it likes: every
// character keeps its mark, and the tokenizer makes no control token of it (TextSegment in tokenizer.h).
//
//     '<|im_end|>'[:5] + content    ->    <|im_ (template)   end|> (outside)
//
// The marks are kept as the places where they change: a text that comes from one place, which is nearly every text,
// has none.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ladder::jinja {

enum class Origin : bool { trusted, outside };

class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, Origin origin) : bytes_(bytes), first_(origin) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  // Of the byte at `at`, which lies within the text.
  Origin origin_at(size_t at) const;
  // trusted where all of it is: for what is made from the text as a whole.
  Origin least_origin() const {
    return turns_.empty() && (bytes_.empty() || first_ == Origin::trusted) ? Origin::trusted
                                                                           : Origin::outside;
  }

  void append(const Text& other);
  void append(std::string_view bytes, Origin origin);
  // The bytes [begin, end) with their marks. Begin and end are borders of characters.
  Text slice(size_t begin, size_t end) const;

  // Calls visit(bytes, origin) for each stretch of one origin, in order.
  template <class Visit>
  void for_each_stretch(const Visit& visit) const {
    size_t begin = 0;
    Origin origin = first_;
    for (const size_t turn : turns_) {
      visit(std::string_view(bytes_).substr(begin, turn - begin), origin);
      begin = turn;
      origin = flipped(origin);
    }
    if (begin < bytes_.size()) visit(std::string_view(bytes_).substr(begin), origin);
  }

  // What the marks take, for the budget.
  size_t bytes_held() const { return bytes_.size() + turns_.size() * sizeof(size_t); }

 private:
  static Origin flipped(Origin origin) {
    return origin == Origin::trusted ? Origin::outside : Origin::trusted;
  }
  Origin last() const { return turns_.size() % 2 == 0 ? first_ : flipped(first_); }

  std::string bytes_;
  Origin first_ = Origin::trusted;  // of the first byte
  std::vector<size_t> turns_;       // where the origin changes, ascending, each within the text
};

// Characters are code points, as in Python. The texts are valid UTF-8.
size_t count_code_points(std::string_view text);
// The byte at which code point number `index` begins; the size of the text where there are no more.
size_t code_point_offset(std::string_view text, size_t index);
// What Python's str.strip() takes away: Unicode's white space and the separators U+001C to U+001F.
bool is_python_space(unsigned code_point);

}  // namespace ladder::jinja
