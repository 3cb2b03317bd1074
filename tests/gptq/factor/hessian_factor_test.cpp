// hessian_factor_test.cpp: column order, damping and its escalation, dead columns.
#include "gptq/factor/hessian_factor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"

namespace thimble::hessian_factor_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string factor_error(const SymmetricMatrix& hessian, double damping) {
  return bad_input_message([&] { factor_hessian(hessian, damping, "the.layer"); });
}

TEST(HessianFactor, OrdersColumnsByDescendingDiagonalWithTiesByIndex) {
  HessianFactor factor = factor_hessian(diagonal_hessian({2, 5, 2, 9, 5}), 0.01, "layer");
  EXPECT_THAT(factor.order, ElementsAre(3, 1, 4, 0, 2));
  EXPECT_EQ(factor.damping, 0.01);
  EXPECT_TRUE(factor.dead_columns.empty());
}

TEST(HessianFactor, DampingIsRelativeToTheMeanDiagonal) {
  HessianFactor factor = factor_hessian(diagonal_hessian({1, 7}), 0.25, "layer");  // adds 1
  EXPECT_NEAR(factor.upper(0, 0), 1 / std::sqrt(8.0), 1e-12);
  EXPECT_NEAR(factor.upper(1, 1), 1 / std::sqrt(2.0), 1e-12);
}

TEST(HessianFactor, TraceDampingIsBothDampingsInARow) {
  double once = 1 + kCollectionDamping;  // mean diagonal after the first, if 1 before
  EXPECT_NEAR(1 + kTraceDamping, once + kSolverDamping * once, 1e-15);
}

TEST(HessianFactor, FollowsTheOrder) {
  SymmetricMatrix hessian = correlated_hessian(40, 1);
  HessianFactor factor = factor_hessian(hessian, 0, "layer");
  // U^T U is the inverse of the permuted H: multiply and compare with I.
  for (int64_t i = 0; i < 40; ++i)
    for (int64_t j = 0; j < 40; ++j) {
      double product = 0;
      for (int64_t a = 0; a < 40; ++a)
        for (int64_t m = 0; m <= std::min(i, a); ++m)
          product += factor.upper(m, i) * factor.upper(m, a) *
                     hessian(factor.order[static_cast<size_t>(a)], factor.order[static_cast<size_t>(j)]);
      ASSERT_NEAR(product, i == j, 1e-9);
    }
}

TEST(HessianFactor, ItsDiagonalAloneIsTheSame) {
  SymmetricMatrix hessian = correlated_hessian(300, 2);
  for (int64_t k = 0; k < 300; ++k) (k < 7 ? hessian.lower_row(7)[k] : hessian.lower_row(k)[7]) = 0;  // a dead column
  SymmetricMatrix singular(50);
  for (double& value : singular.values()) value = 1;
  for (const ColumnOrder order : {ColumnOrder::kDescending, ColumnOrder::kNatural})
    for (const SymmetricMatrix* of : {&hessian, &singular})
      EXPECT_EQ(factor_diagonal(*of, 0, "layer", order), factor_hessian(*of, 0, "layer", order).upper_diagonal());
  EXPECT_EQ(bad_input_message([] {
              factor_diagonal(diagonal_hessian({1, -1}), 0.01, "the.layer");
            }),
            factor_error(diagonal_hessian({1, -1}), 0.01));
}

TEST(HessianFactor, DampsASingularHessianHarderAndSaysSo) {
  SymmetricMatrix ones(50);
  for (double& value : ones.values()) value = 1;
  HessianFactor factor = factor_hessian(ones, 0, "layer");
  EXPECT_EQ(factor.damping, 1e-6);

  // Eigenvalues -0.5, 1.5 and 1: adding 0.05 is not enough, adding 0.5 is just singular, adding 5 works.
  SymmetricMatrix indefinite = diagonal_hessian({1, 0.5, 0.5});
  indefinite.lower_row(2)[1] = 1;
  EXPECT_NEAR(factor_hessian(indefinite, 0.075, "layer").damping, 7.5, 1e-12);
}

TEST(HessianFactor, GivesUpOnAnIndefiniteHessianNamingTheLayer) {
  SymmetricMatrix hopeless = diagonal_hessian({1, 1});
  hopeless.lower_row(1)[0] = 1e9;
  EXPECT_THAT(factor_error(hopeless, 0.01), AllOf(HasSubstr("the.layer"), HasSubstr("not positive definite")));
}

TEST(HessianFactor, RefusesValuesThatAreNotFinite) {
  SymmetricMatrix hessian = diagonal_hessian({1, 1});
  hessian.lower_row(1)[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(factor_error(hessian, 0.01), AllOf(HasSubstr("the.layer"), HasSubstr("nan")));
}

TEST(HessianFactor, RefusesANegativeDiagonal) {
  EXPECT_THAT(factor_error(diagonal_hessian({1, 0, -1e-9}), 0.01),
              AllOf(HasSubstr("the.layer"), HasSubstr("column 2")));
}

TEST(HessianFactor, SetsDeadColumnsApart) {
  SymmetricMatrix hessian = diagonal_hessian({4, 0, 9, 0});
  HessianFactor factor = factor_hessian(hessian, 0, "layer");
  EXPECT_THAT(factor.dead_columns, ElementsAre(1, 3));
  EXPECT_THAT(factor.order, ElementsAre(2, 0, 1, 3));
  EXPECT_EQ(factor.damping, 0);  // they do not make it singular
  EXPECT_NEAR(factor.upper(0, 0), 1.0 / 3, 1e-12);

  HessianFactor all_dead = factor_hessian(SymmetricMatrix(3), 0.01, "layer");
  EXPECT_THAT(all_dead.dead_columns, ElementsAre(0, 1, 2));
}

TEST(HessianFactor, AcceptsTinyHessiansNextToDeadColumns) {
  HessianFactor factor = factor_hessian(diagonal_hessian({1e-25, 0, 2e-25}), 0.01, "layer");
  EXPECT_EQ(factor.damping, 0.01);
}

}  // namespace
}  // namespace thimble::hessian_factor_test
