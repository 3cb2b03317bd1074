// hessian_tree_test.cpp: every split of the parts among devices adds them in the same order.
#include "gptq/statistics/statistics_sum.h"

#include <gtest/gtest.h>

#include <string>

namespace thimble::hessian_tree_test {
namespace {

std::string leaf(size_t part) { return std::to_string(part); }
void add(std::string& left, const std::string& right) { left = "(" + left + "+" + right + ")"; }

TEST(HessianTree, IsBinary) {
  EXPECT_EQ(sum_of_node({0, 1}, leaf, add), "0");
  EXPECT_EQ(sum_of_node({0, 3}, leaf, add), "((0+1)+2)");
  EXPECT_EQ(sum_of_node({0, 5}, leaf, add), "(((0+1)+(2+3))+4)");
  EXPECT_EQ(sum_of_node({0, 7}, leaf, add), "(((0+1)+(2+3))+((4+5)+6))");
  EXPECT_EQ(sum_of_node({0, 8}, leaf, add), "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST(HessianTree, EverySplitAddsInTheSameOrder) {
  for (size_t parts = 1; parts <= 8; ++parts)
    for (size_t devices = 1; devices <= 10; ++devices) {
      SCOPED_TRACE(std::to_string(parts) + " parts on " + std::to_string(devices) + " devices");
      std::vector<std::pair<Share, std::string>> sums;
      size_t next = 0;
      for (size_t device = 0; device < devices; ++device)
        for (Share node : nodes_of_device(parts, device, devices)) {
          EXPECT_EQ(node.begin, next);
          next = node.end;
          sums.emplace_back(node, sum_of_node(node, leaf, add));
        }
      EXPECT_EQ(next, parts);
      EXPECT_EQ(join_nodes({0, parts}, sums, add), sum_of_node({0, parts}, leaf, add));
    }
}

TEST(HessianTree, OneDeviceHasTheWholeTree) {
  for (size_t parts = 1; parts <= 8; ++parts) EXPECT_EQ(nodes_of_device(parts, 0, 1).size(), 1u);
  EXPECT_EQ(nodes_of_device(8, 1, 2).size(), 1u);
  EXPECT_EQ(nodes_of_device(8, 3, 4).size(), 1u);
}

TEST(HessianTree, HoldsOneSumPerLevel) {
  struct Counted {
    int64_t& live;
    explicit Counted(int64_t& count) : live(++count) {}
    Counted(Counted&& other) noexcept : live(other.live) { ++live; }
    ~Counted() { --live; }
  };
  for (size_t parts = 1; parts <= 8; ++parts) {
    int64_t live = 0, most = 0;
    sum_of_node(
        {0, parts},
        [&](size_t) {
          Counted counted(live);
          most = std::max(most, live);
          return counted;
        },
        [](Counted&, const Counted&) {});
    EXPECT_EQ(live, 0);
    EXPECT_EQ(most, live_sums(parts)) << parts;
  }
}

}  // namespace
}  // namespace thimble::hessian_tree_test
