package eval

import (
	"fmt"
	"io"

	"github.com/gradpress/gradpress/hooks"
)

// TraceSteps is how many steps a trace covers: enough to look at, and a file that a browser opens.
const TraceSteps = 20

// monitor is what watches a run, where somebody asks: nil else.
type monitor struct {
	spans hooks.Memory
	steps hooks.Memory
}

// newMonitor watches the steps after the method's warm-up and after the first one, which allocates.
func newMonitor(r Run) *monitor {
	if r.Trace == nil && !r.Overlap {
		return nil
	}
	from := max(1, r.Method.Warmup)
	if from >= r.Settings.Steps {
		from = 0
	}
	m := &monitor{spans: hooks.Memory{From: from, Limit: TraceSteps}, steps: hooks.Memory{From: from}}
	if r.Trace == nil {
		m.spans.From = r.Settings.Steps
	}
	return m
}

// Span keeps what belongs into the trace.
func (m *monitor) Span(s hooks.Span) { m.spans.Span(s) }

// Step keeps c.
func (m *monitor) Step(c hooks.Counters) { m.steps.Step(c) }

// recorder is m as a hooks.Recorder, nil where there is nothing to watch.
func (m *monitor) recorder() hooks.Recorder {
	if m == nil {
		return nil
	}
	return m
}

func (m *monitor) write(w io.Writer) error {
	if m == nil || w == nil {
		return nil
	}
	if err := hooks.WriteTrace(w, m.spans.Spans()); err != nil {
		return fmt.Errorf("eval: trace: %w", err)
	}
	return nil
}

// overlap is the mean over the steps of a rank in which there was something to hide, nil where nobody watched.
func (m *monitor) overlap(rank int) *float64 {
	if m == nil {
		return nil
	}
	sum, n := 0.0, 0
	for _, c := range m.steps.Steps() {
		if c.Rank == rank && c.Backward > 0 && c.Exchange > 0 {
			sum, n = sum+c.Overlap, n+1
		}
	}
	return finite(sum / float64(n))
}
