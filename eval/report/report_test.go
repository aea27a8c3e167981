package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/eval"
)

func ptr(x float64) *float64 { return &x }

func records() []*eval.Record {
	good := &eval.Record{Task: "lstm-markov", Method: "dgc:ratio=0.01,momentum=0.5", Workers: 4, Steps: 100, Warmup: 20, Metric: "perplexity",
		Final: ptr(6.75), Dense: ptr(6.5), Floor: ptr(6.294), TrainLoss: ptr(1.9), HeldOutLoss: ptr(1.91), PayloadRatio: 109.4, WholePayloadRatio: 19,
		WireRatio: ptr(92.75), WholeWireRatio: ptr(17.25), Bytes: 3500, StateBytes: 8, Seconds: 12.34}
	lost := &eval.Record{Task: "resnet8-glyphs", Method: "odd|name", Workers: 1, Steps: 10, Warmup: 10, Metric: "accuracy", Diverged: true, NonFinite: 3,
		PayloadRatio: 1, WholePayloadRatio: 1, Bytes: 12}
	alone := &eval.Record{Task: "resnet8-glyphs", Method: "topk", Metric: "accuracy", Final: ptr(0.9912), PayloadRatio: 1379, WholePayloadRatio: 99.96, Bytes: 2.5e6, Steps: 1}
	return []*eval.Record{good, lost, alone}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Text(&b, records()))
	lines := strings.Split(b.String(), "\n")
	cells := func(i int) []string { return strings.Fields(lines[i]) }
	require.Equal(t, []string{"lstm-markov", "dgc:ratio=0.01,momentum=0.5", "6.750", "perplexity", "+0.250", "109x", "(19.0x)", "92.8x", "(17.2x)", "3.5", "kB",
		"0.0", "0.0", "0.0", "8.0", "12.3"}, cells(1))
	require.Equal(t, []string{"resnet8-glyphs", "odd|name", "diverged", "-", "1.0x", "(1.0x)", "-", "(-)", "12", "B"}, cells(2)[:10])
	require.Equal(t, []string{"resnet8-glyphs", "topk", "99.12", "%", "-", "1379x", "(100.0x)", "-", "(-)", "2.50", "MB"}, cells(3)[:11])
	rest := strings.Join(lines[4:], "\n")
	require.Contains(t, rest, "entropy allows 6.294 at best")
	require.Contains(t, rest, "odd|name: warm-up lasts 10 of 10 steps")
	require.Contains(t, rest, "3 buckets were exchanged dense")
	require.Equal(t, 1, strings.Count(rest, "resnet8-glyphs: accuracy"), "a line a task, not a run")
}

func TestMarkdown(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Markdown(&b, records()))
	var columns []int
	for _, line := range strings.Split(b.String(), "\n") {
		if strings.HasPrefix(line, "|") {
			columns = append(columns, strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"))
		}
	}
	require.Len(t, columns, 2+3)
	for _, n := range columns {
		require.Equal(t, columns[0], n, "a bar in a method's name must not make a column")
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	for _, r := range records() {
		require.NoError(t, JSON(&b, r))
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 3)
	var back map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &back))
	require.Nil(t, back["final_metric"])
	require.Nil(t, back["wire_ratio"])
	require.Equal(t, true, back["diverged"])
}
