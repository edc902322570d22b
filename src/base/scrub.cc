// How it works: scrubbed() passes over the text once. At each position, the rules below return the
// length of a secret that begins at this position. The rules use no regular expressions: the text
// is hostile and long.
#include "xffl/base/scrub.h"

#include <algorithm>
#include <array>
#include <optional>

namespace xffl {
namespace {

constexpr std::string_view kRemoved = "[removed]";

// Prefixes of tokens of well-known services.
struct Prefix {
  std::string_view text;
  size_t length;  // minimum number of token characters after the prefix
};
constexpr auto kPrefixes = std::to_array<Prefix>({
    {"hf_", 20},  {"ghp_", 20},        {"gho_", 20},   {"ghu_", 20},  {"ghs_", 20},
    {"ghr_", 20}, {"github_pat_", 20}, {"glpat-", 16}, {"sk-", 20},   {"nvapi-", 20},
    {"npm_", 20}, {"pypi-", 20},       {"xoxb-", 16},  {"xoxp-", 16}, {"xoxa-", 16},
    {"AKIA", 16}, {"ASIA", 16},        {"AIza", 30},   {"eyJ", 30},  // a JSON web token
});

// Names whose values are secrets: a whole identifier or its last part (HF_TOKEN).
constexpr auto kNames = std::to_array<std::string_view>({
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "secret_key",
    "private_key",
    "credential",
    "credentials",
    "one-time code",
});
constexpr size_t kShortestValue = 6;  // "unknown token: 5" holds no secret

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_token(char c) { return is_alnum(c) || c == '_' || c == '-' || c == '.'; }
// A character of the credentials of an HTTP header: token68 of RFC 7235.
bool is_header_token(char c) { return is_token(c) || c == '~' || c == '+' || c == '/' || c == '='; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

size_t length_of(std::string_view text, size_t at, bool (*belongs)(char)) {
  size_t end = at;
  while (end < text.size() && belongs(text[end])) ++end;
  return end - at;
}
size_t token_length(std::string_view text, size_t at) { return length_of(text, at, is_token); }

// For at < text.size(). Most positions differ in the first character.
bool starts_at(std::string_view text, size_t at, std::string_view prefix) {
  return text[at] == prefix.front() && text.substr(at, prefix.size()) == prefix;
}

bool starts_at_any_case(std::string_view text, size_t at, std::string_view prefix) {
  if (lower(text[at]) != prefix.front() || text.size() - at < prefix.size()) return false;
  return std::equal(prefix.begin(), prefix.end(), text.begin() + static_cast<std::ptrdiff_t>(at),
                    [](char a, char b) { return a == lower(b); });
}

// The length of a private key in PEM, up to the end of the key or of the text.
size_t private_key(std::string_view text, size_t at) {
  constexpr std::string_view kBegin = "-----BEGIN ", kKey = "PRIVATE KEY-----", kEnd = "-----END ";
  if (starts_at(text, at, "b3BlbnNzaC1rZXktdjEA")) return token_length(text, at);  // first line
  if (!starts_at(text, at, kBegin)) return 0;
  const size_t type = text.substr(at, 80).find(kKey);
  if (type == std::string_view::npos) return 0;
  const size_t key = at + type;
  const size_t end = text.find(kEnd, key);
  const size_t last = end == std::string_view::npos ? end : text.find(kKey, end);
  return last == std::string_view::npos ? text.size() - at : last + kKey.size() - at;
}

// The length of the END line of a private key whose beginning the text lacks.
size_t end_of_private_key(std::string_view text, size_t at) {
  constexpr std::string_view kEnd = "-----END ", kKey = "PRIVATE KEY-----";
  if (!starts_at(text, at, kEnd)) return 0;
  const size_t type = text.substr(at, 80).find(kKey);
  return type == std::string_view::npos ? 0 : type + kKey.size();
}

size_t known_token(std::string_view text, size_t at) {
  for (const Prefix& prefix : kPrefixes) {
    if (!starts_at(text, at, prefix.text)) continue;
    const size_t length = token_length(text, at + prefix.text.size());
    if (length >= prefix.length) return prefix.text.size() + length;
  }
  return 0;
}

// The number of characters that scrubbed() keeps before a secret, and the length of the secret.
struct Named {
  size_t kept = 0;
  size_t secret = 0;
};

// The value after a name: "=value", ": value", "\": \"value\"".
Named value_after(std::string_view text, size_t at, size_t name) {
  size_t i = at + name;
  const auto skip = [&](std::string_view any) {
    const size_t begin = i;
    while (i < text.size() && any.find(text[i]) != std::string_view::npos) ++i;
    return i > begin;
  };
  skip("\"'");
  skip(" ");
  if (i >= text.size() || (text[i] != '=' && text[i] != ':')) return {};
  skip("=: ");
  skip("\"'");
  const size_t begin = i;
  while (i < text.size() &&
         std::string_view(" \t\r\n\"'&;,)}").find(text[i]) == std::string_view::npos)
    ++i;
  return i - begin >= kShortestValue ? Named{begin - at, i - begin} : Named{};
}

// "Bearer TOKEN" and "Basic BASE64" of an HTTP header. The base64 of a name begins with a letter or
// a digit; a path does not.
Named header_credentials(std::string_view text, size_t at) {
  constexpr size_t kShortest = 16;
  for (const std::string_view scheme : {"bearer ", "basic "}) {
    if (!starts_at_any_case(text, at, scheme)) continue;
    const size_t begin = at + scheme.size();
    const size_t length = length_of(text, begin, is_header_token);
    if (length >= kShortest && (scheme == "bearer " || is_alnum(text[begin])))
      return {scheme.size(), length};
  }
  return {};
}

Named named_value(std::string_view text, size_t at) {
  if (const Named found = header_credentials(text, at); found.secret > 0) return found;
  for (const std::string_view name : kNames)
    if (starts_at_any_case(text, at, name))
      if (const Named named = value_after(text, at, name.size()); named.secret > 0) return named;
  return {};
}

// "scheme://user:password@host"
Named url_password(std::string_view text, size_t at) {
  if (!starts_at(text, at, "://")) return {};
  size_t i = at + 3;
  while (i < text.size() && is_token(text[i])) ++i;
  if (i >= text.size() || text[i] != ':') return {};
  const size_t begin = ++i;
  while (i < text.size() && text[i] > ' ' && text[i] != '/' && text[i] != '@') ++i;
  if (i >= text.size() || text[i] != '@' || i == begin) return {};
  return {begin - at, i - begin};
}

Named secret_at(std::string_view text, size_t at) {
  const char before = at == 0 ? ' ' : text[at - 1];
  if (!is_alnum(before))
    if (const size_t key = private_key(text, at); key > 0) return {0, key};
  if (!is_token(before))
    if (const size_t token = known_token(text, at); token > 0) return {0, token};
  if (!is_alnum(before))
    if (const Named named = named_value(text, at); named.secret > 0) return named;
  return url_password(text, at);
}

bool is_blank(char c) { return static_cast<unsigned char>(c) <= ' '; }

}  // namespace

std::string scrubbed(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    if (const size_t end = end_of_private_key(text, at); end > 0) {
      clean = kRemoved;
      at += end;
      continue;
    }
    const Named found = secret_at(text, at);
    if (found.secret == 0) {
      clean += text[at++];
      continue;
    }
    clean += text.substr(at, found.kept);
    clean += kRemoved;
    at += found.kept + found.secret;
  }
  return clean;
}

std::string scrubbed_end(std::string_view text, size_t max_bytes, bool is_whole) {
  if (!is_whole) {  // a secret may begin before the text
    size_t begin = text.find('\n');
    if (begin == std::string_view::npos)
      begin = static_cast<size_t>(std::find_if(text.begin(), text.end(), is_blank) - text.begin());
    text.remove_prefix(std::min(text.size(), begin + 1));
  }
  std::string clean = scrubbed(text);
  if (clean.size() > max_bytes) clean.erase(0, clean.size() - max_bytes);
  return clean;
}

}  // namespace xffl
