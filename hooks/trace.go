package hooks

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// event is one entry of a Chrome trace; times are in microseconds.
type event struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"`
	Dur   float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args"`
}

// WriteTrace writes spans in Chrome's trace event format: a process a rank, a thread a category, time from the first span on.
func WriteTrace(w io.Writer, spans []Span) error {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b Span) int { return a.Start.Compare(b.Start) })
	out := bufio.NewWriter(w)
	var epoch time.Time
	if len(spans) > 0 {
		epoch = spans[0].Start
	}
	fmt.Fprintf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"start\":%q},\"traceEvents\":[", epoch.Format(time.RFC3339Nano))
	sep := "\n"
	put := func(e event) error {
		b, err := json.Marshal(e)
		out.WriteString(sep)
		out.Write(b)
		sep = ",\n"
		return err
	}
	type place struct {
		name     string
		pid, tid int
	}
	seen := map[place]bool{}
	for _, s := range spans {
		// An agreement is an exchange too, of one byte and on a thread of its own.
		cat, tid := s.Category, int(s.Category)
		if cat == Agree {
			cat = Exchange
		}
		for _, m := range []event{
			{Name: "process_name", PID: s.Rank, Args: map[string]any{"name": fmt.Sprintf("rank %d", s.Rank)}},
			{Name: "thread_name", PID: s.Rank, TID: tid, Args: map[string]any{"name": s.Category.String()}},
		} {
			m.Phase = "M"
			if at := (place{m.Name, m.PID, m.TID}); !seen[at] {
				seen[at] = true
				if err := put(m); err != nil {
					return err
				}
			}
		}
		if err := put(event{Name: fmt.Sprintf("%s %d", s.Category, s.Bucket), Cat: cat.String(), Phase: "X", TS: micro(s.Start.Sub(epoch)), Dur: micro(s.Duration),
			PID: s.Rank, TID: tid, Args: map[string]any{"bucket": s.Bucket, "step": s.Step}}); err != nil {
			return err
		}
	}
	out.WriteString("\n]}\n")
	return out.Flush()
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
