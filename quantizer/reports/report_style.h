// report_style.h: how the pages of report_page.h look. Fonts of the system; light or dark as the reader's system is;
// from the width of a phone to that of a desktop.
#pragma once

namespace thimble {

// CSS without <, & and >.
extern const char* const kReportStyle;

}  // namespace thimble
