package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/eval/ratio"
	"github.com/gradpress/gradpress/eval/shapes"
)

type ratioFlags struct {
	models, methods string
	seed            uint64
	json            bool
}

func ratioCommand() *cobra.Command {
	var f ratioFlags
	cmd := &cobra.Command{
		Use:   "ratio",
		Short: "Measure bytes a step and ratios for the layer shapes of well-known models",
		Long: `Compress drawn gradients with the true layer shapes of well-known models, and print what one rank sends a step: payload bytes and ratio, bits
an index, and the wire ratio at 4, 16 and 64 ranks. Nothing is trained.

Models: ` + shapes.Names() + `.
Methods: see "gradpress methods". They run without warm-up.`,
		Example: `  gradpress ratio
  gradpress ratio --models resnet50,gpt2 --methods dgc:values=int8,small=0.015 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.models, "models", "all", "models, separated by commas")
	fl.StringVar(&f.methods, "methods", "dgc,dgc:values=int8,dgc:values=sign,dgc:values=int8,small=0.015", "methods, separated by commas")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of the gradients")
	fl.BoolVar(&f.json, "json", false, "print one JSON object a model and method instead of the table")
	return cmd
}

func (f *ratioFlags) run(cmd *cobra.Command) error {
	models, err := f.findModels()
	if err != nil {
		return err
	}
	list, err := f.parse()
	if err != nil {
		return err
	}
	var rows []*ratio.Row
	for _, model := range models {
		for _, m := range list {
			row, err := ratio.Measure(cmd.Context(), ratio.Config{Model: model, Method: m.method, TwoPhase: m.twoPhase, Seed: f.seed})
			if err != nil {
				return fmt.Errorf("%s with %s: %w", model.Name, m.method.Text, err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s  %s  payload %.0fx  %.1f s\n", row.Model, row.Method, row.PayloadRatio, row.Seconds)
			rows = append(rows, row)
			if f.json {
				b, err := json.Marshal(row)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s\n", b)
			}
		}
	}
	if f.json {
		return nil
	}
	return ratio.Text(cmd.OutOrStdout(), rows)
}

func (f *ratioFlags) findModels() ([]shapes.Model, error) {
	if f.models == "all" {
		return shapes.All(), nil
	}
	var models []shapes.Model
	seen := map[string]bool{}
	for _, name := range strings.Split(f.models, ",") {
		m, err := shapes.Find(strings.TrimSpace(name))
		if err != nil {
			return nil, usagef("--models: %w", err)
		}
		if seen[m.Name] {
			return nil, usagef("--models: %q is given twice", m.Name)
		}
		seen[m.Name] = true
		models = append(models, m)
	}
	return models, nil
}

// pair is a method as it is written and, where it has the setting, with traffic by owner.
type pair struct {
	method   compress.Method
	twoPhase *compress.Method
}

// parse reads the methods.
func (f *ratioFlags) parse() ([]pair, error) {
	texts, err := splitMethods(f.methods)
	if err != nil {
		return nil, err
	}
	registry := all.Methods()
	canExchange := map[string]bool{}
	for _, d := range registry.Describe() {
		for _, s := range d.Settings {
			canExchange[d.Name] = canExchange[d.Name] || s.Key == "exchange"
		}
	}
	seen := map[string]bool{}
	var list []pair
	noWarmup := compress.Setting{Key: "warmup", Value: "0"}
	for _, text := range texts {
		m, err := registry.Parse(text, noWarmup)
		switch {
		case err != nil:
			return nil, err
		case seen[text]:
			return nil, usagef("--methods: %q is given twice", text)
		case m.Warmup > 0:
			return nil, usagef("--methods: %q has a warm-up of %d steps; ratios are those after it: leave warmup out", text, m.Warmup)
		}
		seen[text] = true
		p := pair{method: m}
		if canExchange[m.Name] {
			by, err := registry.Parse(text, noWarmup, compress.Setting{Key: "exchange", Value: "twophase"})
			if err != nil {
				return nil, err
			}
			p.twoPhase = &by
		}
		list = append(list, p)
	}
	return list, nil
}
