// Package report writes run records for people and for machines.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gradpress/gradpress/eval"
)

// JSON writes one record as one line.
func JSON(w io.Writer, r *eval.Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

var header = []string{"task", "method", "metric", "vs dense", "payload", "wire", "bytes/step", "backward s", "compress s", "exchange s", "state B/param", "total s"}

// Legend explains the columns.
const Legend = `payload: 4 bytes a parameter over the bytes one rank offers a step, after the method's warm-up (whole run in parentheses).
wire: what the busiest rank sends in dense ring all-reduce over what it sends with the method, headers included, same workers.
bytes/step: on the wire, busiest rank, after warm-up. Seconds are means over workers; exchange includes waiting for the others.`

// rows are the table's cells.
func rows(records []*eval.Record) [][]string {
	all := [][]string{header}
	for _, r := range records {
		all = append(all, []string{
			r.Task, r.Method, metric(r), difference(r),
			fmt.Sprintf("%s (%s)", Ratio(&r.PayloadRatio), Ratio(&r.WholePayloadRatio)),
			fmt.Sprintf("%s (%s)", Ratio(r.WireRatio), Ratio(r.WholeWireRatio)),
			size(r.Bytes), seconds(r.BackwardSeconds), seconds(r.CompressSeconds + r.DecodeSeconds), seconds(r.ExchangeSeconds),
			fmt.Sprintf("%.1f", r.StateBytes), seconds(r.Seconds),
		})
	}
	return all
}

// Text writes an aligned table with its legend and what else there is to know.
func Text(w io.Writer, records []*eval.Record) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows(records) {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n%s", Legend, strings.Join(notes(records), ""))
	return err
}

// Markdown writes the same as a Markdown document.
func Markdown(w io.Writer, records []*eval.Record) error {
	var b strings.Builder
	b.WriteString("# gradpress eval\n\n")
	for i, row := range rows(records) {
		for j := range row {
			row[j] = strings.ReplaceAll(row[j], "|", "\\|")
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	b.WriteString("\n")
	for _, line := range strings.Split(Legend, "\n") {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	for _, note := range notes(records) {
		b.WriteString("- " + note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// notes are one line for each task, and one for each run that a reader could misread.
func notes(records []*eval.Record) []string {
	var all []string
	seen := map[string]bool{}
	for _, r := range records {
		if !seen[r.Task] {
			seen[r.Task] = true
			floor := ""
			if r.Floor != nil {
				floor = fmt.Sprintf(" The source's entropy allows %.3f at best.", *r.Floor)
			}
			all = append(all, fmt.Sprintf("%s: %s, %d parameters, %d workers x batch %d, %d steps, learning rate %g, seed %d, BLAS %s.%s\n",
				r.Task, r.Metric, r.Params, r.Workers, r.Batch, r.Steps, r.LR, r.Seed, r.BLAS, floor))
		}
		if r.Warmup >= r.Steps {
			all = append(all, fmt.Sprintf("%s with %s: warm-up lasts %d of %d steps, so its ratios are those of warm-up.\n", r.Task, r.Method, r.Warmup, r.Steps))
		}
		if r.NonFinite > 0 {
			all = append(all, fmt.Sprintf("%s with %s: %d buckets were exchanged dense, for gradients that were not finite.\n", r.Task, r.Method, r.NonFinite))
		}
	}
	return all
}

func metric(r *eval.Record) string {
	if r.Diverged {
		return "diverged"
	}
	return value(r, *r.Final)
}

// value is a metric with its unit; accuracies are shown in percent.
func value(r *eval.Record, x float64) string {
	if r.Metric == "accuracy" {
		return fmt.Sprintf("%.2f %%", 100*x)
	}
	return fmt.Sprintf("%.3f %s", x, r.Metric)
}

func difference(r *eval.Record) string {
	if r.Diverged || r.Dense == nil {
		return "-"
	}
	if r.Metric == "accuracy" {
		return fmt.Sprintf("%+.2f points", 100*(*r.Final-*r.Dense))
	}
	return fmt.Sprintf("%+.3f", *r.Final-*r.Dense)
}

// Ratio is x as tables show it, a dash where it does not apply.
func Ratio(x *float64) string {
	switch {
	case x == nil:
		return "-"
	case *x >= 100:
		return fmt.Sprintf("%.0fx", *x)
	}
	return fmt.Sprintf("%.1fx", *x)
}

func size(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.2f MB", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.1f kB", x/1e3)
	}
	return fmt.Sprintf("%.0f B", x)
}

func seconds(x float64) string { return fmt.Sprintf("%.1f", x) }
