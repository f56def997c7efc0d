// Reads JSON texts, whose objects must have exactly the expected fields.

#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aotpack {

class Json {
 public:
  enum class Kind : uint8_t { null, boolean, number, string, list, object };

  // Raises std::invalid_argument for what is no JSON text.
  static Json parse(std::string_view text);

  Kind kind() const {
    return kind_;
  }

  bool is_null() const {
    return kind_ == Kind::null;
  }

  bool boolean() const {
    require(Kind::boolean, "true or false");
    return text_ == "true";
  }

  // The digits of a number as they are in the text.
  const std::string& number() const {
    require(Kind::number, "a number");
    return text_;
  }

  const std::string& string() const {
    require(Kind::string, "a string");
    return text_;
  }

  int64_t integer() const {
    char* end = nullptr;
    errno = 0;
    const int64_t value = std::strtoll(number().c_str(), &end, 10);
    if (*end != '\0' || errno != 0) {
      throw std::invalid_argument("expected an integer, got " + text_);
    }
    return value;
  }

  size_t index() const {
    const int64_t value = integer();
    if (value < 0) {
      throw std::invalid_argument("expected an index, got " + text_);
    }
    return static_cast<size_t>(value);
  }

  const std::vector<Json>& list() const {
    require(Kind::list, "a list");
    return items_;
  }

  // The items of a list, each passed to a function.
  template <typename Read>
  auto each(Read read) const {
    std::vector<decltype(read(std::declval<const Json&>()))> found;
    found.reserve(list().size());
    for (const Json& item : items_) {
      found.push_back(read(item));
    }
    return found;
  }

  // Null, or the value that a function reads.
  template <typename Read>
  auto optional(Read read) const {
    using Value = decltype(read(std::declval<const Json&>()));
    return is_null() ? std::optional<Value>() : std::optional<Value>(read(*this));
  }

  class Fields;

  // What a function reads of an object's fields. It must read them all.
  template <typename Read>
  auto object(Read read) const;

 private:
  class Reader;

  void require(Kind kind, const char* what) const {
    if (kind_ != kind) {
      throw std::invalid_argument(std::string("expected ") + what);
    }
  }

  Kind kind_ = Kind::null;
  std::string text_; // of a string or a number; "true" or "false"
  std::vector<std::string> names_; // of an object's fields
  std::vector<Json> items_; // of a list or an object
};

class Json::Fields {
 public:
  explicit Fields(const Json& object) : object_(object), read_(object.items_.size(), false) {
    object.require(Kind::object, "an object");
  }

  // A field, which must be there.
  const Json& operator[](std::string_view name) {
    for (size_t i = 0; i < read_.size(); ++i) {
      if (object_.names_[i] == name) {
        read_[i] = true;
        return object_.items_[i];
      }
    }
    throw std::invalid_argument("the field " + std::string(name) + " is missing");
  }

  void require_all_read() const {
    for (size_t i = 0; i < read_.size(); ++i) {
      if (!read_[i]) {
        throw std::invalid_argument("the field " + object_.names_[i] + " is unknown");
      }
    }
  }

 private:
  const Json& object_;
  std::vector<bool> read_;
};

template <typename Read>
auto Json::object(Read read) const {
  Fields fields(*this);
  auto found = read(fields);
  fields.require_all_read();
  return found;
}

class Json::Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json document() {
    Json found = value(0);
    space();
    if (at_ != text_.size()) {
      fail();
    }
    return found;
  }

 private:
  static constexpr int kMaxDepth = 64;

  [[noreturn]] void fail() const {
    throw std::invalid_argument("no JSON at byte " + std::to_string(at_));
  }

  char next() const {
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  void space() {
    while (next() == ' ' || next() == '\n' || next() == '\r' || next() == '\t') {
      ++at_;
    }
  }

  bool take(std::string_view word) {
    const bool found = text_.substr(at_, word.size()) == word;
    at_ += found ? word.size() : 0;
    return found;
  }

  void must_take(std::string_view word) {
    if (!take(word)) {
      fail();
    }
  }

  Json value(int depth) {
    if (depth > kMaxDepth) {
      fail();
    }
    space();
    Json found;
    switch (next()) {
      case '{':
        found.kind_ = Kind::object;
        items('}', [&] {
          found.names_.push_back(string());
          space();
          must_take(":");
          found.items_.push_back(value(depth + 1));
        });
        break;
      case '[':
        found.kind_ = Kind::list;
        items(']', [&] { found.items_.push_back(value(depth + 1)); });
        break;
      case '"':
        found.kind_ = Kind::string;
        found.text_ = string();
        break;
      case 'n':
        must_take("null");
        break;
      case 't':
      case 'f':
        found.kind_ = Kind::boolean;
        found.text_ = next() == 't' ? "true" : "false";
        must_take(found.text_);
        break;
      default:
        found.kind_ = Kind::number;
        found.text_ = number();
    }
    return found;
  }

  template <typename Item>
  void items(char end, Item item) {
    ++at_;
    space();
    if (next() == end) {
      ++at_;
      return;
    }
    for (;;) {
      space();
      item();
      space();
      if (next() == end) {
        ++at_;
        return;
      }
      must_take(",");
    }
  }

  std::string number() {
    const size_t start = at_;
    take("-");
    digits();
    if (take(".")) {
      digits();
    }
    if (take("e") || take("E")) {
      static_cast<void>(take("+") || take("-"));
      digits();
    }
    return std::string(text_.substr(start, at_ - start));
  }

  void digits() {
    const size_t start = at_;
    while (next() >= '0' && next() <= '9') {
      ++at_;
    }
    if (at_ == start) {
      fail();
    }
  }

  std::string string() {
    std::string found;
    must_take("\"");
    while (next() != '"') {
      if (static_cast<unsigned char>(next()) < 0x20) {
        fail();
      }
      if (next() == '\\') {
        ++at_;
        escape(found);
      } else {
        found.push_back(text_[at_++]);
      }
    }
    ++at_;
    return found;
  }

  void escape(std::string& found) {
    constexpr std::string_view escapes = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (take("u")) {
      const uint32_t code = unit();
      if (code >= 0xD800 && code < 0xE000) { // with the next one, a pair
        must_take("\\u");
        const uint32_t low = unit();
        if (code >= 0xDC00 || low < 0xDC00 || low >= 0xE000) {
          fail();
        }
        append(found, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
      } else {
        append(found, code);
      }
      return;
    }
    const size_t which = escapes.find(next());
    if (next() == '\0' || which == std::string_view::npos) {
      fail();
    }
    found.push_back(meanings[which]);
    ++at_;
  }

  uint32_t unit() {
    const std::string digits(text_.substr(at_, 4));
    char* end = nullptr;
    const unsigned long code = std::strtoul(digits.c_str(), &end, 16);
    if (digits.size() != 4 || *end != '\0') {
      fail();
    }
    at_ += 4;
    return static_cast<uint32_t>(code);
  }

  static void append(std::string& found, uint32_t code) {
    const auto more = [&](int shift) { found.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3F))); };
    if (code < 0x80) {
      found.push_back(static_cast<char>(code));
    } else if (code < 0x800) {
      found.push_back(static_cast<char>(0xC0 | (code >> 6)));
      more(0);
    } else if (code < 0x10000) {
      found.push_back(static_cast<char>(0xE0 | (code >> 12)));
      more(6);
      more(0);
    } else {
      found.push_back(static_cast<char>(0xF0 | (code >> 18)));
      more(12);
      more(6);
      more(0);
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

inline Json Json::parse(std::string_view text) {
  return Reader(text).document();
}

} // namespace aotpack
