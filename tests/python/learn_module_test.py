"""learn_module_test.py: what thimble.quantize() does beyond statistics: cross terms, learning of codes, and modules whose
parameters are elsewhere than where they are computed with. Against plain loops, the command line, and itself.

Skipped where thimble or torch is missing; some tests where transformers or accelerate is.
"""

import copy
import struct
import subprocess
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from needs import needs, thimble_program

needs("thimble", "torch")

import numpy  # noqa: E402
import thimble  # noqa: E402
import torch  # noqa: E402
from modules import VOCABULARY, PlainModel, batches_of, example_model, llama_config  # noqa: E402
from thimble.module_learner import _Latents, DistillOptions, LearnOptions, ModuleLearner, adam_step, rate_share  # noqa: E402
from thimble.module_pairs import ModulePairs  # noqa: E402
from thimble.module_parameters import Matrix  # noqa: E402
from thimble.module_statistics import gather, next_token_logits, next_token_loss  # noqa: E402
from torch import nn  # noqa: E402


class Chain(nn.Module):
    """Of each kind of product one, in a row: the second and the third read one input."""

    def __init__(self, width=24):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.first = nn.Linear(width, width)
        self.second, self.third = nn.Linear(width, width), nn.Linear(width, width)
        self.turned = nn.Parameter(torch.randn(width, width) * 0.3)
        self.bank = nn.Parameter(torch.randn(2, width, width) * 0.3)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.first(self.embedding(tokens))
        x = torch.tanh(self.second(x) * self.third(x)) @ self.turned
        for matrix in self.bank:
            x = x + torch.tanh(nn.functional.linear(x, matrix))
        return self.head(x)


def divergence_of(original, state, batches):
    """KL in nats for each prediction, between a model and itself with these tensors."""
    quantized = copy.deepcopy(original)
    quantized.load_state_dict(state, strict=False)
    total = count = 0
    with torch.no_grad():
        for batch in batches:
            p, q = (torch.log_softmax(getattr(given, "logits", given)[:, :-1].double(), -1)
                    for given in (original(batch), quantized(batch)))  # fmt: skip
            total += (p.exp() * (p - q)).sum().item()
            count += p[..., 0].numel()
    return total / count


class LearnModuleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "model.thmb"
        torch.manual_seed(11)

    def quantized(self, model, batches, bits=4.0, **arguments):
        budget = int(sum(p.numel() for p in model.parameters()) * bits / 8) + 4000
        arguments = {"min_elements": 256, "progress": False, "out": self.out, "budget": budget} | arguments
        report = thimble.quantize(model, batches, **arguments)
        self.assertLessEqual(Path(report.path).stat().st_size, arguments["budget"])
        return report

    def test_inputs_are_those_of_both_models(self):
        model, batches = Chain(), batches_of(3)
        statistics = gather(model, batches, progress=False)
        groups = statistics.inputs()
        self.assertEqual(groups, [["first.weight"], ["second.weight", "third.weight"], ["turned"], ["bank.0"], ["bank.1"]])
        quantized = copy.deepcopy(model)
        pairs = ModulePairs(model, groups, statistics.matrices, batches, next_token_loss)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        pairs.begin({})
        for place, group in enumerate(groups):
            hessian, drift = pairs.collect(place)
            leader = statistics.matrices[group[0]]
            x, y = self.inputs(model, leader, batches), self.inputs(quantized, leader, batches)
            numpy.testing.assert_allclose(hessian, (y.T @ y / len(y)).numpy(), rtol=1e-4, atol=1e-5)
            numpy.testing.assert_allclose(drift, ((x - y).T @ y / len(y)).numpy(), rtol=1e-4, atol=1e-5)
            self.assertEqual(bool(drift.any()), place > 0)
            for name in group:
                matrix = statistics.matrices[name]
                with torch.no_grad():
                    values = matrix.of(quantized.get_parameter(matrix.parameter))
                    values += 0.1 * torch.randn_like(values)
                pairs.replace(name, values.detach().contiguous().numpy())
        pairs.end()
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def inputs(self, model, matrix: Matrix, batches):
        """Float64 inputs of a matrix: those whose product with it is what the model computes with."""
        seen = []

        class Spy(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                if func in (nn.functional.linear, torch.Tensor.__matmul__, torch.Tensor.matmul):
                    own = model.get_parameter(matrix.parameter)
                    own = own if matrix.part is None else own[matrix.part]
                    if args[1].data_ptr() == own.data_ptr():
                        seen.append(args[0].detach().reshape(-1, args[0].shape[-1]).double())
                return func(*args, **(kwargs or {}))

        with torch.no_grad(), Spy():
            for batch in batches:
                model(batch)
        return torch.cat(seen)

    def test_what_other_positions_read_has_no_cross_terms(self):
        class Routed(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(VOCABULARY, 24)
                self.always, self.some, self.twice = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
                self.head = nn.Linear(24, VOCABULARY)

            def forward(self, tokens):
                x = self.twice(self.twice(self.always(self.embedding(tokens))))
                chosen = x[..., 0] > 0
                x = x.clone()
                x[chosen] = self.some(x[chosen])
                return self.head(x)

        statistics = gather(Routed(), batches_of(3), progress=False)
        self.assertEqual(list(statistics.matrices), ["always.weight", "twice.weight", "some.weight", "head.weight"])
        self.assertEqual(statistics.inputs(), [["always.weight"]])

    def test_cross_terms_bring_the_model_nearer(self):
        model = example_model()
        batches = batches_of(4, 4, 64, 1024)
        found = {}
        for cross_term in (0.0, 1.0):
            report = self.quantized(model, batches, 2.5, min_elements=4096, cross_term=cross_term)
            found[cross_term] = divergence_of(model, thimble.state_dict(report.path, device="cpu"), batches)
            self.assertEqual(report.artifact.provenance["cross_term"], cross_term)
        self.assertLess(found[1.0], 0.95 * found[0.0])

    def test_quantized_as_well_as_by_the_command_line(self):
        """With cross terms, from the same tokens, on others."""
        model = example_model()
        tokens = torch.randint(0, 1024, (24, 128), generator=torch.Generator().manual_seed(3))
        calibration, others = list(tokens[:16].split(4)), list(tokens[16:].split(4))
        report = self.quantized(model, calibration, 2.5, min_elements=4096)
        shard = self.folder / "tokens.bin"
        shard.write_bytes(struct.pack("<256i", 20240520, 1, 16 * 128, *[0] * 253)
                          + tokens[:16].numpy().astype("<u2").tobytes())  # fmt: skip
        line = self.folder / "line.thmb"
        example = Path(__file__).resolve().parents[2] / "examples" / "tiny"
        command = [thimble_program(), "quantize", str(example), "-o", str(line), "--budget",
                   str(report.facts["budget_bytes"]), "--calibration-tokens", str(shard), "--calibration-length", "128",
                   "--distill-steps", "0", "--no-resume", "--quiet"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        ours, theirs = (divergence_of(model, thimble.state_dict(path, device="cpu"), others)
                        for path in (report.path, line))  # fmt: skip
        self.assertLess(ours, 1.2 * theirs)

    def test_learning_brings_codes_nearer(self):
        """From codes with coarse steps, which the trellis alone has chosen."""
        model, batches = Chain(), batches_of(33)
        state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
        places = {name: Matrix(name, name) for name in state if name != "bank"}
        places["turned"] = Matrix("turned", "turned", None, True)
        places |= {f"bank.{part}": Matrix(f"bank.{part}", "bank", part) for part in range(2)}
        stepped, small = {}, {}
        for name, place in places.items():
            value = torch.from_numpy(state[place.parameter])
            if value.dim() == 1:
                small[name] = state[name]
                continue
            weights = numpy.ascontiguousarray(place.of(value).numpy())
            step = 1.2 * weights.std()
            levels = numpy.asarray(thimble._thimble.nearest_levels(weights / step, 8))
            rows, columns = (numpy.full(n, step**0.5, "f4") for n in weights.shape)
            stepped[name] = levels, rows, columns, 8

        def tensors(levels, gains, small):
            rows = {name: one[1] * gains.get(name, 1) for name, one in stepped.items()}
            return small | {name: one * rows[name][:, None] * stepped[name][2] for name, one in levels.items()}

        found = {}
        for has_rows in (False, True):
            options = LearnOptions(96, 16, 0.05, has_rows)
            learner = ModuleLearner(model, places, batches, next_token_logits, options, DistillOptions(0),
                                    set(stepped) - {"turned"}, self.folder, "", False)  # fmt: skip
            before = learner.divergence(tensors({name: one[0] for name, one in stepped.items()}, {}, small))
            latents, gains, learned_small, *counts = learner.learn(small, {}, stepped, 0.0)
            self.assertEqual((learned_small, counts), ({}, [96, 116, 16]))
            self.assertEqual(set(gains), set(stepped) - {"turned"} if has_rows else set())
            self.assertTrue(all(one.shape == stepped[name][1].shape and (one != 1).any() for name, one in gains.items()))
            levels = {name: numpy.asarray(thimble._thimble.nearest_levels(one, 8)) for name, one in latents.items()}
            self.assertTrue(all((levels[name] != stepped[name][0]).any() for name in levels))
            found[has_rows] = learner.divergence(tensors(levels, gains, small))
            self.assertLess(found[has_rows], 0.5 * before)
            for name, value in model.state_dict().items():
                self.assertTrue(numpy.array_equal(value.numpy(), state[name]), name)
        self.assertNotEqual(found[False], found[True])

    def test_large_models_learn_gains_of_rows_with_their_codes(self):
        """In the row steps of what is stored; a model is large that has more than FREE_CODES parameters."""
        model, batches = PlainModel(), batches_of(9)
        arguments = dict(bits=5, learn_steps=16, learn_batch=4)
        found_at = {}
        for large in (False, True):
            limit = thimble._thimble.FREE_CODES if not large else 0
            with unittest.mock.patch.object(thimble._thimble, "FREE_CODES", limit):
                learned = self.quantized(model, batches, **arguments).facts["learn"]
            self.assertTrue(learned["kept"], large)
            found = divergence_of(model, thimble.state_dict(self.out, device="cpu"), batches[-1:])
            self.assertAlmostEqual(found, learned["divergence_after"], delta=1e-3 * found)
            found_at[large] = learned["divergence_after"]
        self.assertNotEqual(found_at[False], found_at[True])

    def test_a_price_of_bits_pulls_latents_towards_zero(self):
        levels = 6 * torch.randn(40, 30, generator=torch.Generator().manual_seed(3)).round()
        stepped = levels.numpy(), numpy.ones(40, "f4"), numpy.ones(30, "f4"), 8
        for price in (0.0, 1.0):
            latents = _Latents(stepped, torch.device("cpu"), 0.1, price)
            latents.latents.grad = torch.zeros_like(levels)
            latents.step(1, 1.0)
            nearer = latents.latents.detach().abs() < levels.abs()
            self.assertTrue(torch.equal(nearer, (levels != 0) & (price > 0)), price)

    def test_learned_codes_are_kept_where_they_are_nearer(self):
        model, batches = PlainModel(), batches_of(3)
        for rate in (0.02, 1.0):
            with self.subTest(rate=rate):
                report = self.quantized(model, batches, 5, learn_steps=8, learn_rate=rate, learn_batch=4)
                learned = report.facts["learn"]
                self.assertEqual((learned["steps"], learned["sequences"], learned["held_out"]), (8, 8, 4))
                self.assertEqual(learned["kept"], learned["divergence_after"] < learned["divergence_before"])
                found = divergence_of(model, thimble.state_dict(report.path, device="cpu"), batches[-1:])
                if learned["kept"]:
                    self.assertAlmostEqual(found, learned["divergence_after"], delta=1e-3 * found)
                self.assertEqual(report.artifact.provenance["learn_steps"], 8)
                self.assertIn("nats per prediction on 4 sequences held out", repr(report))
                self.assertIn("learned", report._repr_html_())

    def test_an_interrupt_ends_learning_and_the_same_call_goes_on(self):
        """With gains of rows too, which large models learn."""
        for limit in (thimble._thimble.FREE_CODES, 0):
            with self.subTest(limit=limit), unittest.mock.patch.object(thimble._thimble, "FREE_CODES", limit):
                self.check_interrupted_learning()

    def check_interrupted_learning(self):
        model, batches = PlainModel(), batches_of(5)
        arguments = dict(bits=5, learn_steps=32, learn_batch=4, loss=next_token_loss)
        calls = 0
        stop_at = None

        def predict(model, batch):
            nonlocal calls
            calls += 1
            if calls == stop_at:
                raise KeyboardInterrupt
            return next_token_logits(model, batch)

        whole = self.quantized(model, batches, predict=predict, **arguments)
        all_calls, expected = calls, self.out.read_bytes()
        self.assertIn("learn", whole.facts)
        calls, stop_at = 0, int(0.7 * all_calls)
        with self.assertRaises(KeyboardInterrupt):
            self.quantized(model, batches, predict=predict, **arguments)
        self.assertTrue(all(p.requires_grad for p in model.parameters()))
        self.assertTrue((self.folder / "model.thmb.work" / "learning.pt").exists())
        calls, stop_at = 0, None
        self.quantized(model, batches, predict=predict, **arguments)
        self.assertLess(calls, 0.7 * all_calls)
        self.assertEqual(self.out.read_bytes(), expected)

    def test_levels_are_the_nearest(self):
        generator = numpy.random.default_rng(5)
        latents = generator.normal(0, 3, (40, 7)).astype("f4")
        even = numpy.asarray(thimble._thimble.nearest_levels(latents, 0))
        numpy.testing.assert_array_equal(even, 2 * numpy.rint(latents / 2))
        path = numpy.asarray(thimble._thimble.nearest_levels(latents, 8))
        self.assertLess(numpy.square(path - latents).mean(), numpy.square(even - latents).mean())
        numpy.testing.assert_array_equal(numpy.asarray(thimble._thimble.nearest_levels(path, 8)), path)
        short = numpy.asarray(thimble._thimble.nearest_levels(latents, 8, 10.0))
        self.assertLess(numpy.abs(short).sum(), numpy.abs(path).sum())
        for shape in ((0, 3), (3, 0), (1, 1)):
            self.assertEqual(numpy.asarray(thimble._thimble.nearest_levels(numpy.zeros(shape, "f4"), 8)).shape, shape)
        with self.assertRaisesRegex(thimble.UsageError, "trellis_bits is 9"):
            thimble._thimble.nearest_levels(latents, 9)

    def test_steps_of_adam(self):
        value, second, first = torch.tensor([1.0, 2.0]), torch.zeros(2), torch.zeros(2)
        gradient = torch.tensor([3.0, 0.0])
        adam_step(1, 0.1, 0.5, value, gradient, second, first)
        # v = g^2 and m = g after bias correction; rms(v) = 3 / sqrt(2)
        torch.testing.assert_close(value, torch.tensor([1 - 0.1 * 3 / (3 + 0.5 * 3 / 2**0.5), 2.0]))
        untouched = torch.tensor([1.0])
        adam_step(1, 0.1, 0.5, untouched, torch.zeros(1), torch.zeros(1))
        self.assertEqual(untouched.item(), 1.0)
        shares = [rate_share(step, 100) for step in range(100)]
        self.assertEqual(shares.index(max(shares)), 9)
        self.assertLess(shares[-1], 0.001)

    def test_tuned_gains_bring_a_model_nearer(self):
        model, batches = Chain(), batches_of(9, 8)
        found = {}
        for steps in (0, 48):
            report = self.quantized(model, batches, bits=3.0, distill_steps=steps)
            found[steps] = divergence_of(model, thimble.state_dict(self.out, device="cpu"), batches[-1:])
        tuned = report.facts["distill"]
        self.assertTrue(tuned["kept"])
        self.assertEqual((tuned["steps"], tuned["sequences"], tuned["held_out"]), (48, 64, 8))
        self.assertAlmostEqual(tuned["divergence_after"], found[48], 5)
        self.assertLess(found[48], 0.97 * found[0])
        self.assertIn("KL", repr(report))
        again = self.out.read_bytes()
        self.quantized(model, batches, bits=3.0, distill_steps=48)
        self.assertEqual(self.out.read_bytes(), again)

    def test_offloaded_models_give_the_same_artifact(self):
        needs("transformers", "accelerate")
        import accelerate
        import transformers

        batches = batches_of()
        for tie in (False, True):
            model = transformers.AutoModelForCausalLM.from_config(llama_config(tie)).eval()
            self.quantized(model, batches, budget=40000, distill_steps=0)
            expected, logits = self.out.read_bytes(), model(batches[0]).logits
            for kind in ("cpu", "disk"):
                with self.subTest(tie=tie, kind=kind):
                    other = copy.deepcopy(model)
                    if kind == "cpu":
                        accelerate.cpu_offload(other, "cpu")
                    else:
                        accelerate.disk_offload(other, str(self.folder / f"weights-{tie}"), "cpu")
                    self.quantized(other, batches, budget=40000)
                    self.assertEqual(self.out.read_bytes(), expected)
                    self.assertEqual({p.device.type for p in other.parameters()}, {"meta"})
                    self.assertTrue(all(p.requires_grad for p in other.parameters()))
                    self.assertTrue(torch.equal(other(batches[0]).logits, logits))
                    for steps, what in (("learn_steps", "codes cannot be learned"), ("distill_steps", "gains cannot be")):
                        with self.assertRaisesRegex(thimble.UsageError, f"{steps} is 4, but {what}"):
                            self.quantized(other, batches, **{steps: 4})

    def test_what_is_wrong_is_named(self):
        model, batches = PlainModel(), batches_of()
        for arguments, text in (
            ({"learn_steps": 4, "loss": next_token_loss}, "no `predict`"),
            ({"learn_steps": 4, "batches": batches[:1]}, "there is 1 batch, two are needed"),
            ({"learn_steps": -1}, "learn_steps is -1, allowed are 0 to"),
            ({"cross_term": 1.5}, "cross_term is 1.5, allowed are 0 to 1"),
            ({"learn_batch": 0}, "learn_batch is 0"),
            ({"learn_rate": 2.0}, "learn_rate is 2.0, allowed are 0 to 1"),
        ):
            with self.subTest(text=text), self.assertRaisesRegex(thimble.UsageError, text):
                self.quantized(model, arguments.pop("batches", batches), **arguments)

    def test_progress_is_shown(self):
        needs("tqdm")
        import contextlib
        import io

        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.quantized(PlainModel(), batches_of(3), 6, learn_steps=4, progress=True)
        for stage in ("collecting statistics", "learning codes", "KL="):
            self.assertIn(stage, said.getvalue())


if __name__ == "__main__":
    unittest.main()
