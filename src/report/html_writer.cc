#include "html_writer.h"

#include <utility>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::report {

std::string escaped(std::string_view text, size_t max_bytes) {
  std::string html;
  for (const char c : log::printable(text, max_bytes)) switch (c) {
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '&':
        html += "&amp;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  return html;
}

void HtmlWriter::write_tag(Markup tag, Attributes attributes, std::string_view end) {
  out_ += '<';
  out_ += tag.text();
  for (const Attribute& attribute : attributes) {
    out_ += ' ';
    out_ += attribute.name.text();
    out_ += "=\"" + escaped(attribute.value, 1 << 20) + '"';
  }
  out_ += end;
}

void HtmlWriter::open(Markup tag, Attributes attributes) {
  write_tag(tag, attributes, ">");
  open_.push_back(tag.text());
}

void HtmlWriter::close() {
  if (open_.empty()) throw Error(ErrorKind::kInternal, "no tag of the page is open");
  out_ += "</" + std::string(open_.back()) + ">";
  open_.pop_back();
}

void HtmlWriter::empty(Markup tag, Attributes attributes) {
  // In SVG an element without content needs the slash; in HTML the slash has no effect.
  write_tag(tag, attributes, "/>");
}

void HtmlWriter::text(std::string_view text, size_t max_bytes) { out_ += escaped(text, max_bytes); }

void HtmlWriter::markup(Markup markup) { out_ += markup.text(); }

void HtmlWriter::head_row(const std::vector<std::string>& titles) {
  open("thead");
  open("tr");
  for (const std::string& title : titles) element("th", title);
  close();
  close();
}

void HtmlWriter::row(const std::vector<std::string>& cells) {
  open("tr");
  for (const std::string& cell : cells) element("td", cell);
  close();
}

void HtmlWriter::element(Markup tag, std::string_view text, Attributes attributes) {
  open(tag, attributes);
  this->text(text);
  close();
}

std::string HtmlWriter::take() {
  if (!open_.empty())
    throw Error(ErrorKind::kInternal, "a tag of the page is open: " + std::string(open_.back()));
  return std::exchange(out_, {});
}

}  // namespace xffl::report
