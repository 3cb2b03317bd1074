// error_matcher.h: the error that a statement throws, so that a test can look at its type, code and words.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "runtime/base/error.h"

namespace thimble {

// Expects that `action` throws exactly the error type E, with a message that holds every one of `words`.
template <typename E>
void expect_error(const std::function<void()>& action, std::initializer_list<std::string> words) {
  try {
    action();
  } catch (const E& error) {
    for (const std::string& word : words) EXPECT_THAT(error.what(), ::testing::HasSubstr(word));
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error";
}

// Message of the Error that `action` throws, checked to be bad input.
inline std::string bad_input_message(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace thimble
