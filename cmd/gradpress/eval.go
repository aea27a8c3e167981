package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pkg/profile"
	"github.com/spf13/cobra"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/eval"
	"github.com/gradpress/gradpress/eval/dataset"
	"github.com/gradpress/gradpress/eval/report"
	"github.com/gradpress/gradpress/hooks"
	"github.com/gradpress/gradpress/transport/tcp"
)

// evalFlags are the command line of eval. Zero means the task's own default.
type evalFlags struct {
	tasks, methods       string
	workers, steps       int
	epochs               float64
	batch, trainLimit    int
	seed                 uint64
	lr, momentum, decay  float64
	clipNorm             float64
	bucketMB             string
	buckets              []int // bytes
	delay, fedavg        int
	denseSteps           int
	corrected            bool
	trace                string
	data, out, profiling string
	nonfinite            string
	checkpoints          eval.Checkpoints
	json, augment        bool
	timeout              time.Duration
}

func evalCommand() *cobra.Command {
	var f evalFlags
	cmd := &cobra.Command{
		Use:   "eval",
		Short: "Train a model with each of several methods on N workers and compare them",
		Long: `Train each task with each method on N workers, from equal initial weights, and print one table: the final metric and its difference
from dense, payload ratio and wire ratio counted on the wire, bytes a step, seconds, state.

Without flags it needs no data, no network and no GPU, and takes one and a half to three minutes on two cores. Workers are goroutines of this process;
started by "gradpress run" or torchrun, each process is one rank and they meet over TCP.

Tasks: ` + eval.TaskNames + `.
Methods: see "gradpress methods".

Records are appended to OUT/runs.jsonl as each run ends, and the table is written to OUT/table.md.`,
		Example: `  gradpress eval
  gradpress eval --task resnet20-cifar10 --methods dense,dgc:ratio=0.001 --epochs 10 --data ~/data
  gradpress run -n 4 -- gradpress eval --task lstm-shakespeare --methods dense,dgc`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.interrupted(cmd.Context(), f.run(cmd)) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.tasks, "task", "resnet8-glyphs,lstm-markov", "tasks, separated by commas")
	fl.StringVar(&f.methods, "methods", "dense,topk,dgc", "methods, separated by commas; dense runs first")
	fl.IntVar(&f.workers, "workers", 4, "number of workers; ranks started by a launcher know their own")
	fl.IntVar(&f.steps, "steps", 0, "steps to train (default the task's)")
	fl.Float64Var(&f.epochs, "epochs", 0, "passes over the training data, instead of --steps")
	fl.IntVar(&f.denseSteps, "dense-steps", 0, "steps in which gradients go whole, before every method but dense begins, with its own warm-up if it has one")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of weights, data order and generated data")
	fl.Float64Var(&f.lr, "lr", 0, "learning rate at the start; it falls to zero along a cosine (default the task's)")
	fl.Float64Var(&f.momentum, "momentum", 0.9, "momentum, applied by the optimizer or by the method that owns it")
	fl.Float64Var(&f.decay, "weight-decay", 0, "weight decay (default the task's)")
	fl.Float64Var(&f.clipNorm, "clip-norm", 0, "scale each rank's whole gradient down to this over sqrt(ranks); 0 is off; buckets then wait for the last")
	fl.IntVar(&f.batch, "batch", 0, "examples a worker and step (default the task's)")
	fl.BoolVar(&f.augment, "augment", false, "crop and mirror training photographs: better in long runs, worse in short ones")
	fl.IntVar(&f.trainLimit, "train-limit", 0, "use only the first so many training images or tokens; 0 is all")
	fl.StringVar(&f.bucketMB, "bucket-mb", "0", "bucket size in MiB; 0 is the smaller of 25 and an eighth of the model; several, separated by commas, are compared")
	fl.IntVar(&f.delay, "delay", 0, "steps that a mean may be late (delayed gradient averaging); 0 waits for it")
	fl.BoolVar(&f.corrected, "dga-correction", true, "with --delay, apply a rank's own gradient at once and correct it when the mean comes")
	fl.IntVar(&f.fedavg, "fedavg", 0, "average weights every so many local steps, instead of gradients; 0 is off")
	fl.StringVar(&f.trace, "trace", "", fmt.Sprintf("write a timeline of %d steps after warm-up for chrome://tracing or Perfetto; one file a run and a process", eval.TraceSteps))
	fl.StringVar(&f.nonfinite, "nonfinite", "check", "check: exchange a bucket dense where a gradient is not finite, so that it enters no residual; trust: do not look")
	fl.StringVar(&f.data, "data", "", "folder with data files; default is a cache that is filled from the network when needed")
	fl.StringVar(&f.out, "out", "out", "folder for records and table")
	fl.StringVar(&f.checkpoints.Dir, "checkpoint", "", "folder for checkpoints, one file a rank; default none are written")
	fl.IntVar(&f.checkpoints.Every, "checkpoint-every", 100, "steps between two checkpoints")
	fl.BoolVar(&f.checkpoints.Resume, "resume", false, "go on from the newest checkpoint that all ranks have in --checkpoint")
	fl.BoolVar(&f.json, "json", false, "print one JSON object a run instead of the table")
	fl.DurationVar(&f.timeout, "timeout", time.Minute, "how long a rank may be waited for")
	fl.StringVar(&f.profiling, "profile", "", "write a profile to OUT: cpu or mem")
	return cmd
}

// job is a task with its methods.
type job struct {
	task     eval.Task
	settings eval.Settings
	problem  eval.Problem
	methods  []compress.Method
}

func (f *evalFlags) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	set := cmd.Flags().Changed
	ranks, err := f.world(set("workers"))
	if err != nil {
		return err
	}
	jobs, err := f.plan(set)
	if err != nil {
		return err
	}
	switch f.profiling {
	case "":
	case "cpu", "mem":
		mode := profile.CPUProfile
		if f.profiling == "mem" {
			mode = profile.MemProfile
		}
		defer profile.Start(mode, profile.ProfilePath(f.out), profile.Quiet, profile.NoShutdownHook).Stop()
	default:
		return usagef("--profile is %q, want cpu or mem", f.profiling)
	}
	show := newProgress(cmd.ErrOrStderr(), ranks.Rank == 0)
	defer show.close()

	// Files first: one that cannot be written, or is missing, should not cost an hour of training.
	if ranks.Rank == 0 {
		if err := f.append(func(io.Writer) error { return nil }); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	for i := range jobs {
		if err := f.load(ctx, &jobs[i], set, show); err != nil {
			return err
		}
	}
	var seats []eval.Seat
	if ranks.Size > 0 {
		ranks.Meshes, ranks.Timeout = 2, f.timeout
		meshes, err := tcp.Dial(ctx, ranks)
		if err != nil {
			return err
		}
		seat := eval.NewSeat(meshes[0], meshes[1])
		defer func() {
			if err != nil {
				seat.Data.Abort(err)
				seat.Control.Abort(err)
			}
			seat.Data.Close()
			seat.Control.Close()
		}()
		seats = []eval.Seat{seat}
	}
	var records []*eval.Record
	for _, j := range jobs {
		for _, bucket := range f.buckets {
			done, err := f.train(cmd, j, bucket, ranks, seats, records, show)
			if err != nil {
				return err
			}
			records = done
		}
	}
	show.close()
	if f.json || len(records) == 0 {
		return nil
	}
	if len(f.buckets) > 1 {
		return sweepTable(cmd.OutOrStdout(), records)
	}
	return report.Text(cmd.OutOrStdout(), records)
}

// interrupted says of an error what a signal had to do with it, and what can be done next.
func (f *evalFlags) interrupted(ctx context.Context, err error) error {
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case f.checkpoints.Dir != "":
		return fmt.Errorf("%w (%w); the same command with --resume goes on from the newest checkpoint", err, context.Cause(ctx))
	}
	return fmt.Errorf("%w (%w); with --checkpoint DIR a run can go on from where it was stopped", err, context.Cause(ctx))
}

// train runs every method of a job with one bucket size, and returns records with what came of it.
func (f *evalFlags) train(cmd *cobra.Command, j job, bucket int, ranks tcp.Config, seats []eval.Seat, records []*eval.Record, show *progress) ([]*eval.Record, error) {
	var dense *float64
	for _, m := range j.methods {
		r := eval.Run{Task: j.task, Problem: j.problem, Method: m, Settings: j.settings, BucketBytes: bucket, Timeout: f.timeout, Seats: seats,
			Checkpoints: f.checkpoints, Overlap: len(f.buckets) > 1, Progress: show.run(j.task.Name, m.Text, j.settings.Steps)}
		rec, err := f.traced(cmd.Context(), r, ranks)
		show.end(rec)
		if err != nil {
			return nil, fmt.Errorf("%s with %s: %w", j.task.Name, m.Text, err)
		}
		if rec == nil {
			continue // another process holds rank 0
		}
		if m.Name == "dense" && f.delay == 0 && f.fedavg == 0 {
			dense = rec.Final
		}
		rec.Dense = dense
		records = append(records, rec)
		if err := f.keep(records); err != nil {
			return nil, err
		}
		if f.json {
			if err := report.JSON(cmd.OutOrStdout(), rec); err != nil {
				return nil, err
			}
		}
	}
	return records, nil
}

// world finds out whether a launcher has made this process one rank of several. Size 0 is a run in this process alone.
func (f *evalFlags) world(workersGiven bool) (tcp.Config, error) {
	if os.Getenv("RANK") == "" && os.Getenv("WORLD_SIZE") == "" {
		return tcp.Config{}, nil
	}
	cfg, err := tcp.FromEnv()
	if err != nil {
		return cfg, usageError{err}
	}
	if workersGiven && f.workers != cfg.Size {
		return cfg, usagef("--workers is %d, but WORLD_SIZE is %d; leave --workers out", f.workers, cfg.Size)
	}
	f.workers = cfg.Size
	return cfg, nil
}

// plan checks everything that can be wrong with the command line before any work is done.
func (f *evalFlags) plan(set func(string) bool) ([]job, error) {
	texts, err := splitMethods(f.methods)
	if err != nil {
		return nil, err
	}
	switch {
	case set("steps") && set("epochs"):
		return nil, usagef("--steps and --epochs are both given; want one of them")
	case set("epochs") && !(f.epochs > 0 && f.epochs < 1e6):
		return nil, usagef("--epochs is %v, want more than 0", f.epochs)
	case f.trainLimit < 0:
		return nil, usagef("--train-limit is %d, want 0 (all) or more", f.trainLimit)
	case !f.corrected && f.delay == 0:
		return nil, usagef("--dga-correction=false needs --delay")
	case f.nonfinite != "check" && f.nonfinite != "trust":
		return nil, usagef("--nonfinite is %q, want check or trust", f.nonfinite)
	case f.checkpoints.Every < 1:
		return nil, usagef("--checkpoint-every is %d, want 1 or more", f.checkpoints.Every)
	case f.checkpoints.Resume && f.checkpoints.Dir == "":
		return nil, usagef("--resume needs --checkpoint DIR")
	case f.timeout <= 0:
		return nil, usagef("--timeout is %v, want more than 0", f.timeout)
	}
	if f.buckets, err = parseBuckets(f.bucketMB); err != nil {
		return nil, err
	}
	var jobs []job
	for _, name := range strings.Split(f.tasks, ",") {
		t, err := eval.FindTask(strings.TrimSpace(name))
		if err != nil {
			return nil, usageError{err}
		}
		s := t.Defaults
		s.Workers, s.Seed, s.Momentum, s.Augment, s.ClipNorm, s.Trust = f.workers, f.seed, f.momentum, f.augment, f.clipNorm, f.nonfinite == "trust"
		s.Delay, s.Uncorrected, s.FedAvg = f.delay, !f.corrected, f.fedavg
		if set("steps") {
			s.Steps = f.steps
		}
		if set("batch") {
			s.Batch = f.batch
		}
		if set("lr") {
			s.LR = f.lr
		}
		if set("weight-decay") {
			s.WeightDecay = f.decay
		}
		if err := s.Check(); err != nil {
			return nil, usageError{err}
		}
		j := job{task: t, settings: s}
		if j.methods, err = parseMethods(texts, t, s); err != nil {
			return nil, err
		}
		if !set("epochs") { // then the steps are not known yet
			if j.methods, err = f.warm(j.methods, s.Steps); err != nil {
				return nil, err
			}
		}
		for _, m := range j.methods {
			if err := eval.Fits(m, s); err != nil {
				return nil, usageError{err}
			}
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// splitMethods cuts a list of methods at its commas: a piece with "=" and no ":" before it goes on with the method before.
func splitMethods(list string) ([]string, error) {
	var texts []string
	for _, piece := range strings.Split(list, ",") {
		piece = strings.TrimSpace(piece)
		name, _, eq := strings.Cut(piece, "=")
		if eq && !strings.Contains(name, ":") {
			if len(texts) == 0 || !strings.Contains(texts[len(texts)-1], ":") {
				return nil, usagef("--methods: setting %q follows no method; write name:%s", piece, piece)
			}
			texts[len(texts)-1] += "," + piece
			continue
		}
		texts = append(texts, piece)
	}
	return texts, nil
}

// parseMethods reads the methods with what the trainer prefers, dense first, each once.
func parseMethods(texts []string, t eval.Task, s eval.Settings) ([]compress.Method, error) {
	prefer := append([]compress.Setting{
		{Key: "momentum", Value: strconv.FormatFloat(s.Momentum, 'g', -1, 64)},
		{Key: "warmup", Value: strconv.Itoa(s.Steps / 5)},
		{Key: "begin", Value: strconv.Itoa(s.Steps / 10)},
	}, t.Prefer...)
	registry := all.Methods()
	var dense, others []compress.Method
	seen := map[string]bool{}
	for _, text := range texts {
		m, err := registry.Parse(text, prefer...)
		if err != nil {
			return nil, err
		}
		switch {
		case seen[text]:
			return nil, usagef("--methods: %q is given twice", text)
		case m.Name == "dense":
			dense = append(dense, m)
		default:
			others = append(others, m)
		}
		seen[text] = true
	}
	return append(dense, others...), nil
}

// load fetches or makes the data, and turns epochs into steps, which need its size.
func (f *evalFlags) load(ctx context.Context, j *job, set func(string) bool, show *progress) error {
	var err error
	j.problem, err = j.task.Load(ctx, dataset.Options{Dir: f.data, Seed: f.seed, TrainLimit: f.trainLimit, Progress: show.load(j.task.Name)})
	show.end(nil)
	if err != nil {
		return fmt.Errorf("%s: %w", j.task.Name, err)
	}
	if !set("epochs") {
		return nil
	}
	s := &j.settings
	s.Steps = max(1, int(f.epochs*float64(j.problem.StepsPerEpoch(s.Batch*s.Workers))+0.5))
	texts := make([]string, len(j.methods))
	for i, m := range j.methods {
		texts[i] = m.Text
	}
	if j.methods, err = parseMethods(texts, j.task, *s); err == nil {
		j.methods, err = f.warm(j.methods, s.Steps)
	}
	return err
}

// warm puts dense steps before every method that is not dense itself.
func (f *evalFlags) warm(methods []compress.Method, steps int) ([]compress.Method, error) {
	if f.denseSteps < 0 || f.denseSteps >= steps {
		return nil, usagef("--dense-steps is %d, want 0 or more, and less than the %d steps of the run", f.denseSteps, steps)
	}
	for i, m := range methods {
		if m.Name == "dense" {
			continue
		}
		var err error
		if methods[i], err = hooks.Warmup(m, f.denseSteps); err != nil {
			return nil, err
		}
	}
	return methods, nil
}

// keep appends the newest record to runs.jsonl and rewrites the table, so that nothing is lost if a later run fails.
func (f *evalFlags) keep(records []*eval.Record) (err error) {
	if err := f.append(func(w io.Writer) error { return report.JSON(w, records[len(records)-1]) }); err != nil {
		return err
	}
	return write(filepath.Join(f.out, "table.md"), os.O_TRUNC, func(w io.Writer) error { return report.Markdown(w, records) })
}

// append adds to the records of all runs.
func (f *evalFlags) append(record func(io.Writer) error) error {
	if err := os.MkdirAll(f.out, 0o777); err != nil {
		return err
	}
	return write(filepath.Join(f.out, "runs.jsonl"), os.O_APPEND, record)
}

func write(path string, mode int, f func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|mode, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(f(file), file.Close())
}
