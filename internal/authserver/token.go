package authserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// tokens is the answer to a code or refresh token (RFC 6749, section 5.1).
type tokens struct {
	Access  string `json:"access_token"`
	Type    string `json:"token_type"`
	Expires int64  `json:"expires_in"` // seconds
	Refresh string `json:"refresh_token,omitempty"`
	Scope   string `json:"scope"`
}

// kept is an answer as it is sealed for whoever lost it.
type kept struct {
	Tokens tokens
	Until  int64 // of the access token, in seconds
}

// AnswerBind is what a sealed answer is bound to.
func AnswerBind(s plane.Sealed) secret.Bind { return answerBind(s.Key) }

func answerBind(signIn string) secret.Bind {
	return secret.Bind{Purpose: "client", Scope: "answer", Record: signIn}
}

// errRaced has a token looked at anew: somebody else was first.
var errRaced = errors.New("authserver: somebody else was first")

const races = 5

// token answers a code or a refresh token.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	f, bad := readForm(w, r)
	if bad != nil {
		s.refuse(w, bad)
		return
	}
	grant := f.Get("grant_type")
	if grant != "authorization_code" && grant != "refresh_token" {
		s.refuse(w, &refusal{code: "unsupported_grant_type", text: "grant_type is authorization_code or refresh_token."})
		return
	}
	id, bad := s.authenticate(r, f)
	if bad != nil {
		s.refuse(w, bad)
		return
	}
	by := shown{client: id, redirect: f.Get("redirect_uri"), verifier: f.Get("code_verifier")}
	if raw := f.Get("resource"); raw != "" {
		res, ok := s.resource(raw)
		if !ok {
			s.refuse(w, &refusal{code: "invalid_target", text: "resource is none of this server's."})
			return
		}
		by.resource = res.Path
	}
	value, kind, judge := f.Get("code"), plane.CodeToken, ofCode
	if grant == "refresh_token" {
		value, kind, judge = f.Get("refresh_token"), plane.RefreshToken, ofRefresh
	}
	if value == "" {
		s.refuse(w, &refusal{code: "invalid_request", text: map[string]string{plane.CodeToken: "code", plane.RefreshToken: "refresh_token"}[kind] + " is missing."})
		return
	}
	out, bad := s.hand(r.Context(), value, kind, &by, judge)
	if bad != nil {
		s.refuse(w, bad)
		return
	}
	answer(w, http.StatusOK, out)
}

type judge func(*plane.SignIn, *plane.Authorization, *plane.ClientToken, *shown) verdict

// hand gives tokens for a code or refresh token, once.
func (s *Server) hand(ctx context.Context, value, kind string, by *shown, of judge) (out tokens, bad *refusal) {
	gone := &refusal{code: "invalid_grant", text: "What was shown is not known, was used, is over or is for something else. Sign the client in again."}
	switch there, err := s.o.Store.KnowsToken(ctx, secret.Digest(value)); {
	case err != nil:
		return tokens{}, &refusal{code: "temporarily_unavailable", text: "The database does not answer.", cause: err}
	case !there:
		return tokens{}, gone
	}
	var v verdict
	for range races {
		err := s.o.Store.Write(ctx, func(t plane.Tx) error {
			by.at = t.Now()
			n, a, k, err := s.o.Store.SignInBy(t, secret.Digest(value), kind)
			if plane.KindOf(err) == plane.NotFound {
				v = refused
				return nil
			}
			if err != nil {
				return err
			}
			switch v = of(&n, &a, &k, by); v {
			case given:
				out, err = s.next(t, &n, &a, kind)
			case again:
				if out, err = s.once(&n, by.at); err != nil {
					v, err = refused, nil // the key that sealed it is gone
				}
			case ended:
				err = s.end(t, &n, &a, kind)
			}
			return err
		})
		switch {
		case errors.Is(err, errRaced):
			continue
		case err != nil:
			return tokens{}, &refusal{code: "temporarily_unavailable", text: plane.Public(err).Message, cause: err}
		case v == ended:
			s.o.Forget()
		}
		if v == given || v == again {
			return out, nil
		}
		return tokens{}, gone
	}
	return tokens{}, &refusal{code: "temporarily_unavailable", text: "The token is being used by others. Try again."}
}

// next makes the next generation of a sign-in's tokens.
func (s *Server) next(t plane.Tx, n *plane.SignIn, a *plane.Authorization, kind string) (tokens, error) {
	now := t.Now()
	until := now.Add(s.o.Limits.AccessLife)
	if n.ExpiresAt.Before(until) {
		until = n.ExpiresAt
	}
	out := tokens{Access: s.o.Token.Access + secret.Random(), Type: "Bearer", Expires: int64(until.Sub(now) / time.Second), Scope: strings.Join((n.Rights & a.Rights).Names(), " ")}
	gen := 0
	if kind == plane.RefreshToken {
		gen = n.Gen + 1
	}
	if n.Refreshes {
		out.Refresh = s.o.Token.Refresh + secret.Random()
	}
	var ok bool
	var err error
	if kind == plane.CodeToken {
		ok, err = s.o.Store.RedeemSignIn(t, n.ID)
	} else {
		var blob []byte
		if blob, err = json.Marshal(kept{out, until.Unix()}); err == nil {
			ok, err = s.o.Store.RotateSignIn(t, n.ID, n.Gen, s.o.Ring.Seal(answerBind(n.ID), blob))
		}
	}
	if err == nil && !ok {
		err = errRaced
	}
	if err != nil {
		return tokens{}, err
	}
	if err := s.o.Store.AddClientToken(t, plane.ClientToken{Hash: secret.Digest(out.Access), SignIn: n.ID, Kind: plane.AccessToken, Gen: gen, ExpiresAt: until}); err != nil {
		return tokens{}, err
	}
	if out.Refresh == "" {
		return out, nil
	}
	return out, s.o.Store.AddClientToken(t, plane.ClientToken{Hash: secret.Digest(out.Refresh), SignIn: n.ID, Kind: plane.RefreshToken, Gen: gen, ExpiresAt: n.ExpiresAt})
}

// once is what the last refresh was answered.
func (s *Server) once(n *plane.SignIn, now time.Time) (tokens, error) {
	blob, err := s.o.Ring.Open(answerBind(n.ID), n.Answer)
	var k kept
	if err == nil {
		err = json.Unmarshal(blob, &k)
	}
	k.Tokens.Expires = max(k.Until-now.Unix(), 1)
	return k.Tokens, err
}

// end ends a sign-in of which somebody has what is not theirs.
func (s *Server) end(t plane.Tx, n *plane.SignIn, a *plane.Authorization, kind string) error {
	if _, err := s.o.Store.EndSignIn(t, n.ID); err != nil {
		return err
	}
	return s.o.Store.AddAudit(t, plane.AuditEntry{Who: a.Person, Action: "client.misuse", What: a.ID + " " + kind, Decision: "deny"})
}

// revoke ends the sign-in of a token, whichever it is (RFC 7009). What is not known is
// revoked already.
func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	f, bad := readForm(w, r)
	if bad != nil {
		s.refuse(w, bad)
		return
	}
	id, bad := s.authenticate(r, f)
	if bad != nil {
		s.refuse(w, bad)
		return
	}
	if f.Get("token") == "" {
		s.refuse(w, &refusal{code: "invalid_request", text: "token is missing."})
		return
	}
	there, err := s.o.Store.KnowsToken(r.Context(), secret.Digest(f.Get("token")))
	if err == nil && there {
		err = s.signOut(r.Context(), id, f.Get("token"))
	}
	if err != nil {
		s.refuse(w, &refusal{code: "temporarily_unavailable", text: plane.Public(err).Message, cause: err})
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
}

// signOut ends the sign-in of a token that a client shows.
func (s *Server) signOut(ctx context.Context, client, token string) error {
	ended := false
	err := s.o.Store.Write(ctx, func(t plane.Tx) error {
		ended = false
		for _, kind := range []string{plane.RefreshToken, plane.AccessToken} {
			n, a, _, err := s.o.Store.SignInBy(t, secret.Digest(token), kind)
			if plane.KindOf(err) == plane.NotFound {
				continue
			}
			if err != nil || n.Client != client {
				return err // another's token is not known to this client
			}
			ended, err = s.o.Store.EndSignIn(t, n.ID)
			if err != nil || !ended {
				return err
			}
			return s.o.Store.AddAudit(t, plane.AuditEntry{Who: a.Person, Action: "client.signout", What: a.ID, Decision: "allow"})
		}
		return nil
	})
	if ended {
		s.o.Forget()
	}
	return err
}

// readForm reads a form of which nothing stands twice (RFC 6749, section 3.2).
func readForm(w http.ResponseWriter, r *http.Request) (url.Values, *refusal) {
	const most = 16 << 10
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/x-www-form-urlencoded") {
		return nil, &refusal{code: "invalid_request", text: "The request is a form: application/x-www-form-urlencoded."}
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if err := r.ParseForm(); err != nil {
		return nil, &refusal{code: "invalid_request", text: "The form cannot be read, or is longer than 16 KiB."}
	}
	return single(r.PostForm)
}

// single refuses what stands twice.
func single(v url.Values) (url.Values, *refusal) {
	for name, all := range v {
		if len(all) > 1 {
			return nil, &refusal{code: "invalid_request", text: readable(name, 40) + " stands there twice."}
		}
	}
	return v, nil
}
