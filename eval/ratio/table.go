package ratio

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gradpress/gradpress/eval/report"
)

// Legend explains the columns.
var Legend = fmt.Sprintf(`Gradients are drawn, heavy-tailed; method, engine and encoding are those of training. Bytes are of one step without warm-up.
payload: 4 bytes a parameter over the bytes one rank offers a step, frames, flags and dense tensors included (rank of %[1]d).
served: the same for the tensors that the method serves one by one, without the 1-D and tiny ones.
bits/index: length of an index's code, and how far that is over H(p)/p, the least for evenly spread indices.
wire: what the busiest of %[1]d, %[2]d, %[3]d ranks sends in dense ring all-reduce over what it sends with the method as written, computed from
counted payloads with the collectives' exact formulas, transport headers included. Under a gather it falls as 2/N of the payload ratio.
by owner: the same with exchange=twophase, where each rank sums its part of every tensor and compresses the sum again.
paper: the payload ratio that Lin et al. (ICLR 2018) report for DGC on this model or the nearest to it.
`, Ranks[0], Ranks[1], Ranks[2])

// Text writes an aligned table with its legend.
func Text(w io.Writer, rows []*Row) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	ranks := strings.ReplaceAll(strings.Trim(fmt.Sprint(Ranks), "[]"), " ", "/")
	fmt.Fprintln(tw, strings.Join([]string{"model", "parameters", "method", "bytes/step", "payload", "served", "bits/index", "over H(p)/p",
		"wire " + ranks, "by owner " + ranks, "paper"}, "\t"))
	for _, r := range rows {
		index, excess := "-", "-"
		if r.IndexBits != nil {
			index, excess = fmt.Sprintf("%.2f", *r.IndexBits), fmt.Sprintf("%.1f %%", 100*(*r.IndexBits / *r.IndexFloor - 1))
		}
		fmt.Fprintln(tw, strings.Join([]string{r.Model, fmt.Sprint(r.Parameters), r.Method, fmt.Sprint(r.PayloadBytes),
			report.Ratio(&r.PayloadRatio), report.Ratio(r.CompressedRatio), index, excess,
			report.Ratio(&r.Wire4) + "/" + report.Ratio(&r.Wire16) + "/" + report.Ratio(&r.Wire64),
			report.Ratio(r.TwoPhase4) + "/" + report.Ratio(r.TwoPhase16) + "/" + report.Ratio(r.TwoPhase64), report.Ratio(r.PaperRatio)}, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s", Legend)
	return err
}
