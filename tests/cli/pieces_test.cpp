// pieces_test.cpp: a run that ends after any of its pieces goes on from there: the same bytes, and no piece that was
// kept is computed again, whatever the stage and the method. (resume_test.cpp kills the program itself.)
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "quantizer/pipeline/quantize_job.h"
#include "quantizer/pipeline/score_model.h"
#include "tests/cli/cli_fixture.h"

namespace thimble::testing::pieces_test {
namespace {

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

class PiecesTest : public CliTest {
 protected:
  QuantizeRequest request_of(MethodKind method) const {
    QuantizeRequest request;
    request.checkpoint = path("model.safetensors");
    request.output = path("out.thmb");
    request.method = method;
    request.plan.min_elements = 100;
    request.fisher = true;
    request.predicts_loss = false;
    request.calibration.sequences = 9;
    request.calibration.length = 32;
    request.slope.cross_term = 1;
    request.cross_sequences = 4;
    request.tuner.steps = 6;
    request.tuner.batch = 2;
    request.encode = encode_options_from(method == MethodKind::kSlope ? "rans" : "zstd");
    request.work_folder = path("work");
    request.keep_work = true;
    return request;
  }

  // How many pieces were kept.
  size_t run(QuantizeRequest request, size_t kill_after = SIZE_MAX) {
    size_t kept = 0;
    request.after_piece = [&](size_t count) {
      kept = std::max(kept, count);
      if (count >= kill_after) throw Killed();
    };
    CommonOptions quiet;
    quiet.quiet = true;
    Console console(quiet);
    StageTimes times;
    OpenedCheckpoint source(request.checkpoint, "");
    const std::unique_ptr<Ranks> alone = make_single_rank();
    if (request.slope_target.bpb_gap)
      request.bits_per_byte = [&](const RunnableModel& model, uint64_t key, const SharedWork& work) {
        return bits_per_byte(model, key, request.device, text(), work, console);
      };
    try {
      run_quantize(request, source, *alone, times, console);
      EXPECT_EQ(kill_after, SIZE_MAX) << "there were only " << kept << " pieces";
    } catch (const Killed&) {
    }
    return kept;
  }

  TokenSource text() const {
    TokenSource source;
    source.shards = {path("val.bin")};
    source.tokenizer = path("sp.model");
    source.context = 32;
    source.stride = 4;
    return source;
  }

  // The inode of each piece, which tells it from one that is written later under its name.
  std::map<std::string, ino_t> pieces() const {
    std::map<std::string, ino_t> found;
    for (const auto& entry : std::filesystem::directory_iterator(path("work"))) {
      struct stat info {};
      ::stat(entry.path().c_str(), &info);
      found[entry.path().filename().string()] = info.st_ino;
    }
    return found;
  }
  static std::string kind_of(const std::string& piece) { return piece.substr(0, piece.find('-')); }

  // None was written again, but for states that newer ones replace, and for tables: their solutions go with the search,
  // and cross terms solve them once more. Those that a result was made of are gone.
  void expect_kept(const std::map<std::string, ino_t>& before) const {
    constexpr int kTables = 5;
    int repeated = 0;
    const std::map<std::string, ino_t> now = pieces();
    for (const auto& [name, inode] : before) {
      if (kind_of(name) == "sums" || kind_of(name) == "learning") continue;
      if (now.contains(name)) {
        repeated += now.at(name) != inode;
        EXPECT_TRUE(now.at(name) == inode || kind_of(name) == "solution") << name << " was computed again";
      } else {
        EXPECT_TRUE(kind_of(name) == "solution" || kind_of(name) == "score") << name << " is lost";
      }
    }
    EXPECT_LE(repeated, kTables) << "solutions were computed again";
  }

  // Killed after the first pieces, and then less and less often, as `closeness` has it.
  void expect_to_go_on(const QuantizeRequest& request, size_t closeness = 4) {
    const size_t all = run(request);
    const ByteVector expected = contents("out.thmb");
    EXPECT_EQ(run(request), 0U) << "pieces of a run that was finished";
    EXPECT_EQ(contents("out.thmb"), expected);
    for (size_t kill_after = 1; kill_after <= all; kill_after += 1 + kill_after / closeness) {
      SCOPED_TRACE("killed after piece " + std::to_string(kill_after) + " of " + std::to_string(all));
      std::filesystem::remove_all(path("work"));
      std::filesystem::remove(path("out.thmb"));
      run(request, kill_after);
      ASSERT_FALSE(exists("out.thmb"));
      const std::map<std::string, ino_t> kept = pieces();
      run(request);
      expect_kept(kept);
      EXPECT_EQ(contents("out.thmb"), expected);
    }
  }
};

TEST_F(PiecesTest, SlopeGoesOnToABudget) {
  QuantizeRequest request = request_of(MethodKind::kSlope);
  request.budget_bytes = 12'000;
  expect_to_go_on(request);
}

TEST_F(PiecesTest, SlopeGoesOnToAGap) {
  QuantizeRequest request = request_of(MethodKind::kSlope);
  request.slope_target.bpb_gap = 0.02;
  request.tuner.steps = 2;
  expect_to_go_on(request, 2);  // each run takes long, and most of its pieces are those of a budget
}

TEST_F(PiecesTest, TraceGoesOn) {
  QuantizeRequest request = request_of(MethodKind::kTrace);
  request.high_is_auto = true;
  request.budget_bytes = 30'000;
  expect_to_go_on(request);
}

TEST_F(PiecesTest, Nvfp4GoesOn) { expect_to_go_on(request_of(MethodKind::kNvfp4)); }

// All of one kind at a time: empty, cut off, changed, or another's.
TEST_F(PiecesTest, DamagedPiecesAreComputedAgain) {
  QuantizeRequest request = request_of(MethodKind::kSlope);
  request.budget_bytes = 12'000;
  run(request);
  const ByteVector expected = contents("out.thmb");
  std::map<std::string, std::string> one_of_each;
  for (const auto& [name, inode] : pieces()) one_of_each[kind_of(name)] = "work/" + name;
  for (const char* kind : {"tokens", "hessians", "search", "solution", "section", "score", "learning"}) {
    SCOPED_TRACE(kind);
    ASSERT_TRUE(one_of_each.contains(kind));
    const ByteVector other = contents(one_of_each.at(std::string(kind) == "tokens" ? "score" : "tokens"));
    for (int damage = 0; damage < 4; ++damage) {
      SCOPED_TRACE(damage);
      for (const auto& [name, inode] : pieces()) {
        const ByteVector whole = contents("work/" + name);
        if (kind_of(name) != kind || whole.empty()) continue;  // a section that nothing asks for stays as it is
        write("work/" + name, damage == 0   ? ByteVector()
                              : damage == 1 ? without_end(whole, whole.size() / 2)
                              : damage == 2 ? with_flipped_bit(whole, whole.size() - 1)
                                            : other);
      }
      EXPECT_GT(run(request), 0U);
      EXPECT_EQ(contents("out.thmb"), expected);
    }
  }
}

}  // namespace
}  // namespace thimble::testing::pieces_test
