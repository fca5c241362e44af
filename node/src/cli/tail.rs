//! `tieline tail`.

use clap::Args;
use tieline_proto::api::{ApiError, Request};
use tieline_proto::id::{MemberId, Seq};
use tieline_proto::view::ChannelShow;

use super::client::read;
use super::follow::{Follow, FrameHead, What};
use super::render::Renderer;
use super::{Context, Done, Exit};

/// Show a channel's messages and follow it.
#[derive(Args, Debug)]
pub struct Tail {
    /// Channel, by name or id
    #[arg(env = "TIELINE_CHANNEL", hide_env_values = true)]
    channel: String,

    /// Start after this seq instead of at the beginning
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    since: u64,

    /// End when everything so far is shown
    #[arg(long, conflicts_with = "follow")]
    once: bool,

    /// Go on with what comes (the default)
    #[arg(long)]
    follow: bool,

    /// Show everything that running turns do: tools, reasoning, usage
    #[arg(long)]
    events: bool,
}

/// Runs it.
pub async fn run(context: &Context, args: Tail) -> Done {
    let out = context.out;
    let dial = context.dial();
    // A person sees turns as they go in any case; programs say whether they want that.
    let events = args.events || !out.json;
    let what = What { channel: args.channel.clone(), since: Seq(args.since), events, once: args.once };
    let mut renderer = Renderer::new(out.style).of(&args.channel, out).with_details(args.events);
    if !out.json {
        let mut client = dial.connect().await?;
        let shown = client.call(Request::ChannelShow { channel: args.channel.clone() }).await?;
        out.text(&heading(context, &mut renderer, shown)?)?;
    }
    let mut follow = Follow::start(&dial, what).await?;
    loop {
        let next = follow.next(|note| out.note(note));
        let frame = tokio::select! {
            frame = next => frame?,
            // A person who stops following has not failed.
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(frame) = frame else { break };
        if !out.json {
            out.raw(&renderer.frame(&frame))?;
        } else if !matches!(frame.head, FrameHead::Seal { .. }) {
            out.raw(&format!("{}\n", frame.raw.get()))?;
        }
    }
    if !out.json {
        out.raw(&renderer.close())?;
    }
    Ok(Exit::OK)
}

/// `#lobby on desk: maya, gpu (lab)`, and the renderer's names of members.
fn heading(context: &Context, renderer: &mut Renderer, shown: serde_json::Value) -> Result<String, ApiError> {
    let shown: ChannelShow = read(shown)?;
    renderer.name(shown.members.iter().map(|member| (MemberId(member.id.0), member.handle.to_string())));
    let nodes = shown.members.iter().filter_map(|member| Some((member.node?, member.node_name.clone()?)));
    renderer.name_nodes(nodes.collect::<Vec<_>>());
    let style = context.out.style;
    let members: Vec<_> = shown.members.iter().map(|member| style.handle(member.handle.as_str())).collect();
    let name = tieline_proto::text::one_line(&shown.channel.name, 63);
    let with = if members.is_empty() { "nobody yet".to_owned() } else { members.join(", ") };
    Ok(format!("{} {with}\n", style.bold(&format!("── {name} ──"))))
}
