package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gradpress/gradpress/eval"
	"github.com/gradpress/gradpress/transport/tcp"
)

// parseBuckets reads a list of sizes in MiB, and returns bytes.
func parseBuckets(list string) ([]int, error) {
	var all []int
	for _, text := range strings.Split(list, ",") {
		mb, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(mb >= 0 && mb < 1<<20) {
			return nil, usagef("--bucket-mb: %q, want sizes in MiB, 0 (automatic) or more", text)
		}
		all = append(all, int(mb*(1<<20)))
	}
	return all, nil
}

// sweepTable compares bucket sizes.
func sweepTable(w io.Writer, records []*eval.Record) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "task\tmethod\tbucket MiB\tbuckets\tms/step\tbackward ms\texchange ms\twait ms\thidden\tbytes/step\tpayload")
	small := map[string]bool{}
	for _, r := range records {
		ms := func(seconds float64) string { return fmt.Sprintf("%.2f", 1000*seconds/float64(r.Steps)) }
		hidden := "-"
		if r.Overlap != nil {
			hidden = fmt.Sprintf("%.0f %%", 100**r.Overlap)
		}
		mark := ""
		if int64(r.BucketBytes) > 4*r.Params {
			mark, small[r.Task] = " *", true
		}
		fmt.Fprintf(tw, "%s\t%s\t%.3g%s\t%d\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.1fx\n", r.Task, r.Method, float64(r.BucketBytes)/(1<<20), mark, r.Buckets,
			ms(r.BackwardSeconds+r.WaitSeconds), ms(r.BackwardSeconds), ms(r.ExchangeSeconds), ms(r.WaitSeconds), hidden, r.Bytes, r.PayloadRatio)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprint(w, `
hidden: share of the shorter of backward and exchange in which both went on at once, rank 0, after warm-up.
Backward includes the forward pass; exchange includes waiting for the other workers; wait is what the step stood still for.
`)
	for _, r := range records {
		if small[r.Task] {
			small[r.Task] = false
			fmt.Fprintf(w, "* larger than all gradients of %s, %.2f MiB: but for a first bucket of 1 MiB they leave together when the last is final, and little can be hidden.\n",
				r.Task, float64(4*r.Params)/(1<<20))
		}
	}
	return nil
}

var unfit = regexp.MustCompile(`[^a-zA-Z0-9=.-]+`)

// tracePath is where the timeline of a run goes.
func (f *evalFlags) tracePath(r eval.Run, ranks tcp.Config) string {
	ext := filepath.Ext(f.trace)
	name := strings.TrimSuffix(f.trace, ext)
	if strings.Contains(f.tasks, ",") || strings.Contains(f.methods, ",") || len(f.buckets) > 1 {
		name += "." + unfit.ReplaceAllString(fmt.Sprintf("%s.%s", r.Task.Name, r.Method.Text), "_")
	}
	if len(f.buckets) > 1 {
		name += fmt.Sprintf(".%.3gMiB", float64(r.BucketBytes)/(1<<20))
	}
	if ranks.Size > 0 {
		name += fmt.Sprintf(".rank%d", ranks.Rank)
	}
	return name + ext
}

// traced does r, with a timeline if one is asked for.
func (f *evalFlags) traced(ctx context.Context, r eval.Run, ranks tcp.Config) (rec *eval.Record, err error) {
	if f.trace == "" {
		return r.Do(ctx)
	}
	file, err := os.Create(f.tracePath(r, ranks))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	r.Trace = file
	return r.Do(ctx)
}
