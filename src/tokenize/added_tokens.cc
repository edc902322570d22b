#include "added_tokens.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "characters.h"

namespace xffl::tokenize {
namespace {

size_t without_space_at_end(std::string_view text, size_t end) {
  for (size_t at = end; at > 0; end = at) {
    if (!is_white_space(previous_code_point(text, at))) break;
  }
  return end;
}

size_t after_space(std::string_view text, size_t begin) {
  for (size_t at = begin; at < text.size(); begin = at) {
    if (!is_white_space(next_code_point(text, at))) break;
  }
  return begin;
}

}  // namespace

void AddedTokens::Tree::add(std::string_view content, uint32_t index) {
  const auto first = static_cast<unsigned char>(content[0]);
  only_begin_ = empty() || only_begin_ == first ? first : -1;
  begins_[first] = true;
  uint32_t node = 0;
  for (const char c : content) {
    const auto [it, added] = nodes_[node].next.try_emplace(static_cast<unsigned char>(c), 0);
    if (!added) {
      node = it->second;
      continue;
    }
    node = it->second = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
  }
  nodes_[node].token = index;
}

template <class Accepts>
bool AddedTokens::Tree::find(std::string_view text, size_t from, size_t& begin, size_t& end,
                             uint32_t& index, Accepts accepts) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (only_begin_ >= 0) {
      const void* hit = std::memchr(text.data() + at, only_begin_, text.size() - at);
      if (hit == nullptr) return false;
      at = static_cast<size_t>(static_cast<const char*>(hit) - text.data());
    } else if (!begins_[static_cast<unsigned char>(text[at])]) {
      continue;
    }
    bool found = false;
    uint32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      const auto it = nodes_[node].next.find(static_cast<unsigned char>(text[i]));
      if (it == nodes_[node].next.end()) break;
      node = it->second;
      if (nodes_[node].token < 0) continue;
      if (!accepts(static_cast<uint32_t>(nodes_[node].token), at, i + 1)) continue;
      found = true;
      begin = at;
      end = i + 1;
      index = static_cast<uint32_t>(nodes_[node].token);
    }
    if (found) return true;
  }
  return false;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    (tokens_[i].normalized ? normalized_ : exact_).add(tokens_[i].content, i);
    if (tokens_[i].single_word && !word_) word_.emplace(SplitPattern::word_character());
  }
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  Matcher matcher(*word_);
  const auto is_word = [&](size_t from, size_t to) {
    size_t match_begin = 0, match_end = 0;
    const std::string_view character = text.substr(from, to - from);
    matcher.set_text(character);
    return matcher.next(0, match_begin, match_end);
  };
  size_t before = begin, after = end;
  if (begin > 0) previous_code_point(text, before);
  if (end < text.size()) next_code_point(text, after);
  return (begin == 0 || !is_word(before, begin)) && (end == text.size() || !is_word(end, after));
}

void AddedTokens::split_by(const Tree& tree, std::string_view whole, const TextPart& part,
                           std::vector<TextPart>& parts, std::span<const ByteRange> plain) const {
  const std::string_view text = whole.substr(part.begin, part.end - part.begin);
  const auto accepts = [&](uint32_t token, size_t from, size_t to) {
    if (plain.empty() || !tokens_[token].special) return true;
    const auto range = std::ranges::upper_bound(plain, part.begin + from, {}, &ByteRange::end);
    return range == plain.end() || range->begin >= part.begin + to;
  };
  size_t done = 0, begin = 0, end = 0;
  uint32_t index = 0;
  for (size_t from = 0; tree.find(text, from, begin, end, index, accepts);) {
    from = end;
    const AddedToken& token = tokens_[index];
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(without_space_at_end(text, begin), done);
    if (token.rstrip) end = after_space(text, end);
    if (done < begin) parts.push_back({part.begin + done, part.begin + begin, -1});
    parts.push_back({part.begin + begin, part.begin + end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({part.begin + done, part.end, -1});
}

void AddedTokens::split(std::string_view text, std::vector<TextPart>& parts,
                        std::span<const ByteRange> plain) const {
  parts.clear();
  if (text.empty()) return;
  const TextPart all{0, text.size(), -1};
  if (normalized_.empty()) {
    exact_.empty() ? parts.push_back(all) : split_by(exact_, text, all, parts, plain);
    return;
  }
  std::vector<TextPart> first;
  split_by(exact_, text, all, first, plain);
  for (const TextPart& part : first) {
    part.id >= 0 ? parts.push_back(part) : split_by(normalized_, text, part, parts, plain);
  }
}

}  // namespace xffl::tokenize
