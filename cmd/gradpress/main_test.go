package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/eval"
)

// With this variable set the test binary is the program.
const asProgram = "GRADPRESS_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// call runs the command line in this process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var o, e bytes.Buffer
	code = run(ctx, args, &o, &e)
	return code, o.String(), e.String()
}

// program is the command line as a process of its own.
func program(t *testing.T, env []string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	return cmd
}

func TestWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"evil"}, []string{`"evil"`, "eval"}},
		{[]string{"eval", "--flag"}, []string{"--flag"}},
		{[]string{"eval", "extra"}, []string{`"extra"`}},
		{[]string{"eval", "--task", "resnet9-glyphs"}, []string{"resnet9-glyphs", "resnetD-glyphs", "lstm-markov"}},
		{[]string{"eval", "--methods", "gzip"}, []string{`"gzip"`, "dense", "topk", "dgc"}},
		{[]string{"eval", "--methods", "dgc:rate=1"}, []string{`"rate"`, "ratio", "momentum"}},
		{[]string{"eval", "--methods", "dgc:ratio=2"}, []string{"ratio", "(0, 1]"}},
		{[]string{"eval", "--methods", "dgc:ratio=x"}, []string{"ratio=x", "number"}},
		{[]string{"eval", "--methods", "ratio=0.1"}, []string{"ratio=0.1", "no method"}},
		{[]string{"eval", "--methods", "dense,ratio=0.1"}, []string{"ratio=0.1"}},
		{[]string{"eval", "--methods", "topk,topk"}, []string{"twice"}},
		{[]string{"eval", "--methods", ""}, []string{`""`, "dense"}},
		{[]string{"eval", "--workers", "0"}, []string{"workers", "1 to 1024"}},
		{[]string{"eval", "--steps", "0"}, []string{"steps"}},
		{[]string{"eval", "--steps", "ten"}, []string{"ten"}},
		{[]string{"eval", "--steps", "1", "--epochs", "1"}, []string{"--epochs"}},
		{[]string{"eval", "--epochs", "-1"}, []string{"--epochs"}},
		{[]string{"eval", "--lr", "-1"}, []string{"learning rate"}},
		{[]string{"eval", "--batch", "0"}, []string{"batch"}},
		{[]string{"eval", "--momentum", "1"}, []string{"momentum", "[0, 1)"}},
		{[]string{"eval", "--train-limit", "-5"}, []string{"--train-limit"}},
		{[]string{"eval", "--bucket-mb", "-1"}, []string{"--bucket-mb"}},
		{[]string{"eval", "--bucket-mb", "1,x"}, []string{"--bucket-mb", `"x"`}},
		{[]string{"eval", "--dense-steps", "-1"}, []string{"--dense-steps is -1", "0 or more"}},
		{[]string{"eval", "--dense-steps", "9", "--steps", "9"}, []string{"--dense-steps is 9", "9 steps"}},
		{[]string{"eval", "--delay", "-1"}, []string{"delay is -1"}},
		{[]string{"eval", "--delay", "1", "--methods", "dgc"}, []string{"dgc", "momentum 0.9"}},
		{[]string{"eval", "--dga-correction=false"}, []string{"--delay"}},
		{[]string{"eval", "--fedavg", "2", "--methods", "topk"}, []string{"fedavg", "topk"}},
		{[]string{"eval", "--fedavg", "2", "--clip-norm", "1", "--methods", "dense"}, []string{"clip norm", "weights"}},
		{[]string{"eval", "--delay", "2", "--clip-norm", "1", "--methods", "dense"}, []string{"clip norm", "applied already"}},
		{[]string{"eval", "--fedavg", "2", "--delay", "2", "--methods", "dense"}, []string{"exclude"}},
		{[]string{"eval", "--timeout", "0s"}, []string{"--timeout"}},
		{[]string{"eval", "--nonfinite", "hope"}, []string{"hope", "check or trust"}},
		{[]string{"eval", "--profile", "disk"}, []string{"disk", "cpu or mem"}},
		{[]string{"run"}, []string{"command"}},
		{[]string{"run", "-n", "0", "--", "true"}, []string{"-n", "1 to 1024"}},
		{[]string{"run", "--port", "70000", "--", "true"}, []string{"--port"}},
		{[]string{"methods", "dgc"}, []string{`"dgc"`}},
	} {
		code, out, err := call(t, c.args...)
		require.Equal(t, wrongUsage, code, "%q", c.args)
		require.Empty(t, out)
		for _, w := range c.want {
			require.Contains(t, err, w, "%q", c.args)
		}
	}
}

func TestSplitMethods(t *testing.T) {
	got, err := splitMethods("dense, dgc:ratio=0.001,momentum=0.5,topk,dgc:ratio=1")
	require.NoError(t, err)
	require.Equal(t, []string{"dense", "dgc:ratio=0.001,momentum=0.5", "topk", "dgc:ratio=1"}, got)
}

func TestHelpAndMethods(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"eval", "--help"}, {"run", "--help"}, {"methods"}} {
		code, out, _ := call(t, args...)
		require.Equal(t, done, code)
		require.NotEmpty(t, out)
	}
	_, out, _ := call(t, "methods", "--json")
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var m struct{ Name, Doc string }
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		require.NotEmpty(t, m.Name)
		require.NotEmpty(t, m.Doc)
	}
}

// TestOutIsTriedFirst: a folder that cannot be written to is not found out after the training.
func TestOutIsTriedFirst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	code, out, err := call(t, "eval", "--task", "resnet8-glyphs", "--methods", "dense", "--steps", "1", "--out", filepath.Join(file, "out"))
	require.Equal(t, failed, code)
	require.Empty(t, out)
	require.Contains(t, err, "--out")
	require.Contains(t, err, file)
	require.NotContains(t, err, "dense", "nothing was trained")
}

func TestMissingAndCorruptData(t *testing.T) {
	dir := t.TempDir()
	code, _, err := call(t, "eval", "--task", "lstm-shakespeare", "--data", dir, "--out", dir)
	require.Equal(t, failed, code)
	require.Contains(t, err, dir)
	require.Contains(t, err, "tinyshakespeare.txt")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cifar-10-binary.tar.gz"), []byte("not an archive"), 0o666))
	code, _, err = call(t, "eval", "--task", "resnet8-cifar10", "--data", dir, "--out", dir)
	require.Equal(t, failed, code)
	require.Contains(t, err, "cifar-10-binary.tar.gz")
}

var quick = []string{"--task", "lstm-markov", "--steps", "20", "--batch", "2", "--train-limit", "20000"}

func TestEvalWritesRecords(t *testing.T) {
	out := t.TempDir()
	code, table, progress := call(t, append([]string{"eval", "--workers", "2", "--methods", "dgc:ratio=0.01,dense", "--out", out}, quick...)...)
	require.Equal(t, done, code, progress)
	require.Less(t, strings.Index(table, "dense"), strings.Index(table, "dgc:ratio"), "dense runs first")
	require.Contains(t, table, "entropy allows")
	require.Contains(t, progress, "perplexity")
	md, err := os.ReadFile(filepath.Join(out, "table.md"))
	require.NoError(t, err)
	require.Contains(t, string(md), "| lstm-markov | dgc:ratio=0.01 |")

	code, stdout, _ := call(t, append([]string{"eval", "--workers", "2", "--methods", "topk", "--json", "--out", out}, quick...)...)
	require.Equal(t, done, code)
	var rec map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &rec), "one object and nothing else")
	for _, key := range []string{"task", "method", "workers", "steps", "metric", "final_metric", "dense_metric", "payload_ratio", "wire_ratio", "bytes_per_step", "dense_bytes_per_step", "seconds"} {
		require.Contains(t, rec, key)
	}
	require.Nil(t, rec["dense_metric"], "there was no dense run")
	lines, err := os.ReadFile(filepath.Join(out, "runs.jsonl"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(lines), "\n"), "records of earlier calls are kept")
}

// A signal ends a run within a step, and the error says how to go on.
func TestInterrupted(t *testing.T) {
	for _, stoppable := range []bool{false, true} {
		dir := t.TempDir()
		kept, sign := filepath.Join(dir, "kept"), filepath.Join(dir, "runs.jsonl") // which is tried before anything else
		args := append([]string{"eval", "--workers", "2", "--methods", "topk", "--out", dir}, quick...)
		if stoppable {
			args = append(args, "--checkpoint", kept, "--checkpoint-every", "10")
			sign = filepath.Join(kept, "*")
		}
		cmd := program(t, nil, append(args, "--steps", "1000000")...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			files, err := filepath.Glob(sign)
			return err == nil && len(files) > 0
		}, 30*time.Second, time.Millisecond)
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.Error(t, cmd.Wait())
		require.Equal(t, failed, cmd.ProcessState.ExitCode(), stderr.String())
		require.Contains(t, stderr.String(), "interrupt signal received")
		require.Contains(t, stderr.String(), map[bool]string{false: "with --checkpoint DIR", true: "with --resume"}[stoppable])
	}
}

func TestSweepAndTrace(t *testing.T) {
	out := t.TempDir()
	code, table, errs := call(t, append([]string{"eval", "--workers", "2", "--methods", "dense", "--bucket-mb", "0.05,25", "--out", out,
		"--trace", filepath.Join(out, "trace.json")}, quick...)...)
	require.Equal(t, done, code, errs)
	require.Contains(t, table, "25 *")
	require.Contains(t, table, "larger than all gradients of lstm-markov")
	require.NotContains(t, table, "0.05 *")
	for _, name := range []string{"trace.lstm-markov.dense.0.05MiB.json", "trace.lstm-markov.dense.25MiB.json"} {
		b, err := os.ReadFile(filepath.Join(out, name))
		require.NoError(t, err)
		require.True(t, json.Valid(b))
	}
}

// Each process writes the timeline of its rank.
func TestLaunchedRanksTrace(t *testing.T) {
	out := t.TempDir()
	exe, err := os.Executable()
	require.NoError(t, err)
	args := append([]string{"run", "-n", "2", "--", exe, "eval", "--methods", "topk", "--delay", "2", "--out", out, "--trace", filepath.Join(out, "t.json")}, quick...)
	text, err := program(t, nil, args...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Contains(t, string(text), "topk, D=2")
	for rank := range 2 {
		b, err := os.ReadFile(filepath.Join(out, fmt.Sprintf("t.rank%d.json", rank)))
		require.NoError(t, err)
		require.True(t, json.Valid(b))
		require.Contains(t, string(b), fmt.Sprintf(`"pid":%d`, rank))
		require.NotContains(t, string(b), fmt.Sprintf(`"pid":%d`, 1-rank))
	}
}

func TestEpochsAndProfile(t *testing.T) {
	out := t.TempDir()
	code, stdout, errs := call(t, "eval", "--task", "lstm-markov", "--epochs", "0.5", "--train-limit", "5120", "--workers", "2", "--batch", "2", "--methods", "dgc", "--json", "--out", out, "--profile", "cpu")
	require.Equal(t, done, code, errs)
	var rec eval.Record
	require.NoError(t, json.Unmarshal([]byte(stdout), &rec))
	require.Equal(t, 20, rec.Steps, "5120 tokens are 40 steps of 2 x 2 streams of 32")
	require.Equal(t, 4, rec.Warmup, "a fifth of the steps, also where those come from epochs")
	require.FileExists(t, filepath.Join(out, "cpu.pprof"))
}

// TestDenseSteps: the method begins after its dense steps, however the length of the run is given.
func TestDenseSteps(t *testing.T) {
	for _, length := range [][]string{{"--steps", "20"}, {"--epochs", "0.5"}} {
		args := append([]string{"eval", "--methods", "dense,topk:ratio=0.01", "--dense-steps", "5", "--json", "--out", t.TempDir(),
			"--task", "lstm-markov", "--train-limit", "5120", "--workers", "2", "--batch", "2"}, length...)
		code, out, errs := call(t, args...)
		require.Equal(t, done, code, errs)
		var r struct {
			Method  string
			Warmup  int     `json:"warmup_steps"`
			Payload float64 `json:"payload_ratio"`
			Whole   float64 `json:"payload_ratio_whole_run"`
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Len(t, lines, 2)
		require.NoError(t, json.Unmarshal([]byte(lines[1]), &r))
		require.Equal(t, "topk:ratio=0.01 after 5 dense steps", r.Method)
		require.Equal(t, 5, r.Warmup)
		require.Greater(t, r.Payload, 2*r.Whole)
	}
}

// Ranks that are processes and meet over TCP end with the same bits as workers in one process.
func TestLaunchedRanksEqualWorkers(t *testing.T) {
	args := append([]string{"eval", "--methods", "dgc", "--json", "--out", t.TempDir()}, quick...)
	_, one, _ := call(t, append(args, "--workers", "2")...)
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := program(t, nil, append([]string{"run", "-n", "2", "--", exe}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	two, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var a, b eval.Record
	require.NoError(t, json.Unmarshal([]byte(one), &a))
	require.NoError(t, json.Unmarshal(two, &b), "%q", two)
	require.Equal(t, *a.HeldOutLoss, *b.HeldOutLoss)
	require.Equal(t, a.Bytes, b.Bytes)
	require.Contains(t, stderr.String(), "[rank 0] lstm-markov  dgc")
}

func TestConflictingWorldSize(t *testing.T) {
	for _, c := range []struct {
		env  []string
		args []string
		want string
	}{
		{[]string{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}, []string{"--workers", "3"}, "WORLD_SIZE is 2"},
		{[]string{"RANK=5", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}, nil, "RANK"},
		{[]string{"RANK=0"}, nil, "WORLD_SIZE"},
	} {
		out, err := program(t, c.env, append([]string{"eval"}, c.args...)...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, wrongUsage, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), c.want)
	}
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func rankEnv(rank, size, port int) []string {
	return []string{fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", size), "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port)}
}

func TestRankThatNeverComes(t *testing.T) {
	args := append([]string{"eval", "--methods", "dgc", "--timeout", "2s", "--out", t.TempDir()}, quick...)
	out, err := program(t, rankEnv(0, 2, freePort(t)), args...).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, failed, exit.ExitCode())
	require.Contains(t, string(out), "rank 1")
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	args := append([]string{"eval", "--methods", "dgc", "--timeout", "2s", "--out", t.TempDir()}, quick...)
	out, err := program(t, rankEnv(0, 2, l.Addr().(*net.TCPAddr).Port), args...).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), l.Addr().String())
}

// One of four ranks is killed while it trains: the others end within the deadline with an error that names it, and what was recorded stays.
func TestKilledRankEndsTheOthers(t *testing.T) {
	port, dir := freePort(t), t.TempDir()
	var ranks [4]*exec.Cmd
	var outputs [4]bytes.Buffer
	for r := range ranks {
		ranks[r] = program(t, rankEnv(r, 4, port), "eval", "--task", "lstm-markov", "--methods", "dense,dgc:warmup=1", "--epochs", "20",
			"--batch", "1", "--train-limit", "20000", "--timeout", "20s", "--out", dir)
		ranks[r].Stderr = &outputs[r]
		require.NoError(t, ranks[r].Start())
	}
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "runs.jsonl"))
		return err == nil && bytes.Contains(b, []byte("\n"))
	}, 50*time.Second, 20*time.Millisecond, "the dense run has not ended")
	time.Sleep(100 * time.Millisecond) // into the second run
	require.NoError(t, ranks[2].Process.Signal(syscall.SIGKILL))
	killed := time.Now()
	for r, cmd := range ranks {
		err := cmd.Wait()
		require.Error(t, err, "rank %d", r)
		if r == 2 {
			continue
		}
		require.Equal(t, failed, cmd.ProcessState.ExitCode(), "rank %d: %s", r, outputs[r].String())
		require.Contains(t, outputs[r].String(), "rank 2", "rank %d", r)
	}
	require.Less(t, time.Since(killed), 20*time.Second)
	b, err := os.ReadFile(filepath.Join(dir, "runs.jsonl"))
	require.NoError(t, err)
	require.Contains(t, string(b), `"method":"dense"`)
}
