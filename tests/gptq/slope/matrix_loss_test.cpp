// matrix_loss_test.cpp: what statistics say of the matrices of a model.
#include "gptq/slope/matrix_loss.h"

#include <gtest/gtest.h>

#include <numeric>

namespace thimble::matrix_loss_test {
namespace {

std::shared_ptr<const Hessian> hessian_of(std::vector<double> diagonal, double beside = 0) {
  auto hessian = std::make_shared<Hessian>();
  hessian->matrix = SymmetricMatrix(static_cast<int64_t>(diagonal.size()));
  for (size_t k = 0; k < diagonal.size(); ++k) {
    auto row = static_cast<int64_t>(k);
    for (int64_t c = 0; c < row; ++c) hessian->matrix.lower_row(row)[c] = beside;
    hessian->matrix.lower_row(row)[row] = diagonal[k];
  }
  hessian->token_count = 1;
  return hessian;
}

TEST(MatrixLoss, LayersHaveTheirHessianAndTheirFisher) {
  CalibrationStatistics statistics;
  statistics.hessians["a"] = hessian_of({1, 4, 9}, 0.5);
  statistics.loss.output_fisher["a"] = {{2, 3}, 1};
  MatrixLoss loss = matrix_losses(store_in_memory(statistics), {{"a", {2, 3}}}).at("a");
  EXPECT_EQ((*loss.hessian->load())(2, 1), 0.5);
  EXPECT_EQ(loss.diagonal, (std::vector<double>{1, 4, 9}));
  EXPECT_EQ(loss.row_weights, (std::vector<double>{2, 3}));
}

TEST(MatrixLoss, LayersWithOneInputShareItsHessian) {
  CalibrationStatistics statistics;
  statistics.hessians["a"] = statistics.hessians["b"] = hessian_of({1, 1});
  auto losses = matrix_losses(store_in_memory(statistics), {{"a", {4, 2}}, {"b", {1, 2}}});
  EXPECT_EQ(losses.at("a").hessian, losses.at("b").hessian);
}

TEST(MatrixLoss, WithoutAFisherAllRowsWeighOne) {
  CalibrationStatistics statistics;
  statistics.hessians["a"] = hessian_of({1, 4});
  EXPECT_EQ(matrix_losses(store_in_memory(statistics), {{"a", {3, 2}}}).at("a").row_weights,
            (std::vector<double>{1, 1, 1}));
}

TEST(MatrixLoss, RowWeightsStayNearTheirMean) {
  CalibrationStatistics statistics;
  statistics.hessians["a"] = hessian_of({1});
  statistics.loss.output_fisher["a"] = {{0, 1, 1}, 1};
  statistics.hessians["unfelt"] = hessian_of({1});
  statistics.loss.output_fisher["unfelt"] = {{0, 0}, 1};
  auto losses = matrix_losses(store_in_memory(statistics), {{"a", {3, 1}}, {"unfelt", {2, 1}}});
  EXPECT_DOUBLE_EQ(losses.at("a").row_weights[0], 2.0 / 3 / kRowWeightRange);
  EXPECT_EQ(losses.at("unfelt").row_weights, (std::vector<double>{1, 1}));
}

TEST(MatrixLoss, TablesAreFeltWhereAndAsOftenAsTheyAreLookedUp) {
  CalibrationStatistics statistics;
  statistics.loss.lookup_fisher["table"] = {{5, 7}, 1};
  statistics.loss.row_counts["table"] = {1, 3, 0};
  MatrixLoss loss = matrix_losses(store_in_memory(statistics), {{"table", {3, 2}}}).at("table");
  EXPECT_FALSE(loss.hessian);
  EXPECT_EQ(loss.diagonal, (std::vector<double>{5, 7}));
  EXPECT_EQ(loss.row_weights, (std::vector<double>{2.0 / 7, 4.0 / 7, 1.0 / 7}));
}

// The diagonal of what a row's errors cost: w_r H_kk + f_r F_k, exactly when all rows are alike.
TEST(MatrixLoss, ATiedTableIsFeltOnBothSides) {
  CalibrationStatistics statistics;
  statistics.loss.head["tied"] = hessian_of({2, 3}, 1);
  statistics.loss.output_fisher["tied"] = {{10, 10}, 1};
  statistics.loss.lookup_fisher["tied"] = {{5, 7}, 1};
  statistics.loss.row_counts["tied"] = {4, 4};
  MatrixLoss loss = matrix_losses(store_in_memory(statistics), {{"tied", {2, 2}}}).at("tied");
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_DOUBLE_EQ(loss.row_weights[r] * loss.diagonal[0], 10 * 2 + 0.5 * 5);
    EXPECT_DOUBLE_EQ(loss.row_weights[r] * loss.diagonal[1], 10 * 3 + 0.5 * 7);
  }
  EXPECT_DOUBLE_EQ((*loss.hessian->load())(1, 0), 10);
}

TEST(MatrixLoss, TensorsOfOtherShapesArePassedOver) {
  CalibrationStatistics statistics;
  statistics.hessians["a"] = hessian_of({1, 4});
  statistics.loss.lookup_fisher["table"] = {{5, 7}, 1};
  statistics.loss.row_counts["table"] = {1, 3, 0};
  EXPECT_TRUE(matrix_losses(store_in_memory(statistics), {{"a", {3, 3}}, {"b", {3, 2}}, {"table", {3, 3}}}).empty());
}

}  // namespace
}  // namespace thimble::matrix_loss_test
