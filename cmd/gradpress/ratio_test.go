package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/eval/ratio"
)

func TestRatioWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"extra"}, []string{`"extra"`}},
		{[]string{"--models", "resnet51"}, []string{`"resnet51"`, "resnet50", "gpt2"}},
		{[]string{"--models", ""}, []string{`""`, "alexnet"}},
		{[]string{"--models", "gpt2, gpt2"}, []string{`"gpt2"`, "twice"}},
		{[]string{"--methods", "gzip"}, []string{`"gzip"`, "dense", "dgc"}},
		{[]string{"--methods", "dgc:rate=1"}, []string{`"rate"`, "ratio", "momentum"}},
		{[]string{"--methods", "small=1"}, []string{"small=1", "no method"}},
		{[]string{"--methods", "dgc,dgc"}, []string{`"dgc"`, "twice"}},
		{[]string{"--methods", "dgc:warmup=10"}, []string{"warm-up of 10 steps"}},
		{[]string{"--seed", "-1"}, []string{"-1"}},
	} {
		code, out, err := call(t, append([]string{"ratio"}, c.args...)...)
		require.Equal(t, wrongUsage, code, "%q", c.args)
		require.Empty(t, out)
		for _, w := range c.want {
			require.Contains(t, err, w, "%q", c.args)
		}
	}
}

func TestRatio(t *testing.T) {
	args := []string{"ratio", "--models", "resnet110", "--methods", "dgc:values=int8,small=0.015,dense", "--seed", "2"}
	code, table, progress := call(t, args...)
	require.Equal(t, done, code, progress)
	require.Equal(t, 2, strings.Count(progress, "\n"), "a line a measurement")
	require.Contains(t, table, "dgc:values=int8,small=0.015")
	require.Contains(t, table, ratio.Legend)

	code, out, _ := call(t, append(args, "--json")...)
	require.Equal(t, done, code)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2)
	for i, line := range lines {
		var row map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &row))
		for _, key := range []string{"model", "parameters", "method", "payload_bytes", "payload_ratio", "payload_ratio_compressed",
			"wire_ratio_4", "wire_ratio_16", "wire_ratio_64", "wire_ratio_two_phase_4", "dgc_paper_ratio"} {
			require.Contains(t, row, key)
		}
		require.EqualValues(t, 1_727_962, row["parameters"])
		if i == 0 {
			require.Equal(t, "dgc:values=int8,small=0.015", row["method"])
			require.Greater(t, row["payload_ratio"], 1000.)
			require.Greater(t, row["wire_ratio_two_phase_64"], row["wire_ratio_64"], "the registry's dgc knows how to go by owner")
		} else {
			require.EqualValues(t, 1, row["wire_ratio_64"])
			require.Nil(t, row["wire_ratio_two_phase_64"])
		}
	}
}
