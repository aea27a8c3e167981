// Command gradpress trains, measures and compares gradient compression methods.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gradpress/gradpress/compress"
)

// Exit codes.
const (
	done = iota
	failed
	wrongUsage
)

// usageError is a mistake in what the user asked for.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "gradpress",
		Short: "Gradient compression for distributed data-parallel training",
		Long: `gradpress sends 2 to 1000 times fewer bytes when workers average their gradients, and keeps what it did not send.

Exit codes: 0 done, 1 failed, 2 wrong usage.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("no command %q; there are eval, ratio, run, methods", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(evalCommand(), ratioCommand(), runCommand(), methodsCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return done
	}
	fmt.Fprintln(stderr, "gradpress:", err)
	var usage usageError
	var method *compress.ParseError
	if errors.As(err, &usage) || errors.As(err, &method) {
		return wrongUsage
	}
	return failed
}

// noArgs refuses arguments that are not flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected %q; %s takes flags only, see --help", args[0], cmd.CommandPath())
	}
	return nil
}
